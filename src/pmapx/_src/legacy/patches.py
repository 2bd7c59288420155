"""Names that are bound to something else for a while, and then as before."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_ABSENT: Any = object()


class Binding(NamedTuple):
    """A name that was bound anew."""

    name: str
    undo: Callable[[], None]


class Bindings:
    """The names bound anew so far, in order; ``undo`` binds them as they were."""

    def __init__(self) -> None:
        """Starts with none."""
        self._made: list[Binding] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are bound anew, e.g. ``jax.pmap``."""
        return tuple(dict.fromkeys(binding.name for binding in self._made))

    def set(self, owner: Any, attribute: str, value: Any, name: str) -> None:
        """Binds an attribute of a module, class or object."""
        before = vars(owner).get(attribute, _ABSENT)
        if before is value:
            return
        setattr(owner, attribute, value)

        def undo() -> None:
            if vars(owner).get(attribute, _ABSENT) is not value:
                return  # Somebody else bound it since.
            if before is _ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, before)

        self._made.append(Binding(name, undo))

    def add_module(self, name: str, module: types.ModuleType) -> None:
        """Makes a module importable, and an attribute of its package if that has none."""
        sys.modules[name] = module
        undo = functools.partial(_remove, sys.modules, name, module)
        self._made.append(Binding(name, undo))
        package, _, attribute = name.rpartition(".")
        if attribute not in _namespace(sys.modules[package]):
            self.set(sys.modules[package], attribute, module, name)

    def replace_everywhere(self, old: Any, new: Any) -> None:
        """Binds ``new`` wherever a loaded module outside of JAX holds ``old``.

        That is in its names, in partials of it, in the names of its classes, and in the defaults
        of its functions.
        """
        for module_name, module in _modules_of_others():
            for attribute, value in list(_namespace(module).items()):
                name = f"{module_name}.{attribute}"
                self._replace(module, attribute, value, old, new, name)
                if _is_a(value, type):
                    members = type.__getattribute__(value, "__dict__")
                    if members.get("__module__") == module_name:
                        for member, inner in list(members.items()):
                            self._replace(value, member, inner, old, new, f"{name}.{member}")

    def _replace(
        self, owner: Any, attribute: str, value: Any, old: Any, new: Any, name: str
    ) -> None:
        if value is old:
            self.set(owner, attribute, new, name)
        elif _is_a(value, staticmethod) and value.__func__ is old:
            self.set(owner, attribute, staticmethod(new), name)
        elif type(value) is functools.partial and value.func is old:
            bound = functools.partial(new, *value.args, **value.keywords)
            self.set(owner, attribute, bound, name)
        elif type(value) is types.FunctionType:
            self._replace_defaults(value, old, new, name)

    def _replace_defaults(self, function: Any, old: Any, new: Any, name: str) -> None:
        positional, keyword = function.__defaults__ or (), function.__kwdefaults__ or {}
        if any(value is old for value in positional):
            swapped = tuple(new if value is old else value for value in positional)
            function.__defaults__ = swapped

            def undo() -> None:
                if function.__defaults__ is swapped:
                    function.__defaults__ = positional

            self._made.append(Binding(f"{name}, a default", undo))
        for key in [key for key, value in keyword.items() if value is old]:
            keyword[key] = new
            undo_keyword = functools.partial(_restore, keyword, key, new, old)
            self._made.append(Binding(f"{name}, the default of {key}", undo_keyword))

    def undo(self) -> None:
        """Binds every name as it was, the latest first."""
        while self._made:
            self._made.pop().undo()


def _restore(mapping: dict[str, Any], key: str, ours: Any, before: Any) -> None:
    if mapping.get(key) is ours:
        mapping[key] = before


def _remove(mapping: dict[str, Any], key: str, ours: Any) -> None:
    if mapping.get(key) is ours:
        del mapping[key]


def _is_a(value: Any, kind: type) -> bool:
    # Not isinstance, which asks the object for its __class__: a proxy may raise, or load a library.
    return issubclass(type(value), kind)


def _modules_of_others() -> Iterator[tuple[str, types.ModuleType]]:
    for name, module in list(sys.modules.items()):
        ours = name.partition(".")[0] in ("jax", "jaxlib", "pmapx")
        if _is_a(module, types.ModuleType) and not ours:
            yield str(_namespace(module).get("__name__", name)), module


def _namespace(module: types.ModuleType) -> dict[str, Any]:
    # Not by way of the module's own __getattribute__, which loads it if it is a lazy one.
    namespace: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return namespace
