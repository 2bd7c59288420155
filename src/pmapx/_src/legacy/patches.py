"""Setting attributes of other modules, now or when they are imported, and undoing it."""

import functools
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

_ABSENT: Any = object()


class Binding(NamedTuple):
    name: str
    undo: Callable[[], None]


class Bindings:
    """The attributes that were set so far, in order; ``undo`` restores them."""

    def __init__(self) -> None:
        self._made: list[Binding] = []

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(binding.name for binding in self._made))

    def set(self, owner: Any, attribute: str, value: Any, name: str) -> None:
        before = vars(owner).get(attribute, _ABSENT)
        if before is value:
            return
        setattr(owner, attribute, value)

        def undo() -> None:
            if vars(owner).get(attribute, _ABSENT) is not value:
                return  # Other code has set it since.
            if before is _ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, before)

        self._made.append(Binding(name, undo))

    def add_module(self, name: str, module: types.ModuleType) -> None:
        """Makes a module importable, and an attribute of its package unless that has one."""
        sys.modules[name] = module
        undo = functools.partial(_restore, sys.modules, name, module, _ABSENT)
        self._made.append(Binding(name, undo))
        package, _, attribute = name.rpartition(".")
        if attribute not in _namespace(sys.modules[package]):
            self.set(sys.modules[package], attribute, module, name)

    def replace_everywhere(self, old: Any, new: Any) -> None:
        """Replaces ``old`` by ``new`` in all loaded modules outside of JAX.

        Covers module attributes, partials, class attributes and defaults of functions.
        """
        for module_name, module in _modules_outside_jax():
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
        while self._made:
            self._made.pop().undo()


def _restore(mapping: dict[str, Any], key: str, ours: Any, before: Any) -> None:
    if mapping.get(key) is not ours:
        return  # Other code has set it since.
    if before is _ABSENT:
        del mapping[key]
    else:
        mapping[key] = before


def current(owner: Any, attribute: str) -> Any:
    """Returns an attribute of JAX without its deprecation warning; None if it has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(owner, attribute, None)


def _is_a(value: Any, kind: type) -> bool:
    # Not isinstance, which reads __class__: a proxy may raise, or load a library.
    return issubclass(type(value), kind)


def _modules_outside_jax() -> Iterator[tuple[str, types.ModuleType]]:
    for name, module in list(sys.modules.items()):
        is_inside = name.partition(".")[0] in ("jax", "jaxlib", "pmapx")
        if _is_a(module, types.ModuleType) and not is_inside:
            yield str(_namespace(module).get("__name__", name)), module


def _namespace(module: types.ModuleType) -> dict[str, Any]:
    # Not the module's own __getattribute__, which would load a lazy module.
    return object.__getattribute__(module, "__dict__")


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with each of the named modules after its import."""

    def __init__(self, names: Sequence[str], callback: Callable[[types.ModuleType], None]) -> None:
        self._names = frozenset(names)
        self._callback = callback

    def start(self) -> None:
        """Calls the callback for modules that are already imported, and hooks later imports."""
        for name in sorted(self._names & set(sys.modules)):
            self._callback(sys.modules[name])
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a module by the other finders, and adds the callback to its loader."""
        if fullname not in self._names:
            return None
        for finder in sys.meta_path:
            find: Any = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._hook(spec.loader)
                return spec
        return None

    def _hook(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            if self in sys.meta_path:
                self._callback(module)

        loader.exec_module = exec_module
