"""Functions that reach a mesh, copied with another mesh in its place.

A function reaches a mesh through a closure, a global, a ``NamedSharding`` or the ``shard_map``
around its body. Everything else is shared with the original.
"""

import copy
import functools
import types
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from pmapx._src.errors.base import package_folders
from pmapx._src.watch.transforms import Watched


def on_mesh(value: Any, mesh: Mesh) -> Any:
    """Returns a function, or another value that reaches a mesh, with ``mesh`` in its place.

    >>> import numpy as np
    >>> here = Mesh(np.array(jax.devices()[:1]), ("i",))
    >>> target = Mesh(np.array(jax.devices("cpu")[:1])[None], ("j", "i"))
    >>> def axis_names():
    ...     return here.axis_names
    >>> on_mesh(axis_names, target)()
    ('j', 'i')
    """
    return _Copies(mesh).of(value)


class _Copies:
    """Copies of functions that reach a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._reaching: dict[int, bool] = {}
        self._made: dict[int, Any] = {}
        self._kept: list[Any] = []  # Keeps the ids valid.

    def of(self, value: Any) -> Any:
        if isinstance(value, Mesh):
            return self._mesh
        if isinstance(value, AbstractMesh):
            return self._mesh.abstract_mesh
        if isinstance(value, NamedSharding):
            return NamedSharding(self._mesh, value.spec, memory_kind=value.memory_kind)
        if _are_devices(value):
            return type(value)(self._mesh.devices.flat)
        if not self._reaches_mesh(value):
            return value
        if id(value) not in self._made:
            self._made[id(value)] = self._copy(value)
        return self._made[id(value)]

    def _reaches_mesh(self, value: Any) -> bool:
        """Returns whether a mesh can be reached from a value; visits each value once."""
        known = self._reaching.get(id(value))
        if known is not None:
            return known
        reached, seen, stack = {id(value): value}, {id(value)}, [value]
        parents: dict[int, list[int]] = {}
        holders: list[int] = []
        while stack:
            item = stack.pop()
            for part in _parts(item):
                if isinstance(part, Mesh | AbstractMesh | NamedSharding) or _are_devices(part):
                    holders.append(id(item))
                    continue
                is_function = _is_jitted(part) or _is_watched_map(part)
                if not isinstance(part, _FOLLOWED) and not is_function:
                    continue
                parents.setdefault(id(part), []).append(id(item))
                if id(part) not in seen:
                    seen.add(id(part))
                    reached[id(part)] = part
                    stack.append(part)
        self._kept += reached.values()
        leading: set[int] = set()
        while holders:
            holder = holders.pop()
            if holder not in leading:
                leading.add(holder)
                holders += parents.get(holder, [])
        self._reaching.update((key, key in leading) for key in reached)
        return id(value) in leading

    def _copy(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return self._copy_function(value)
        if isinstance(value, types.MethodType):
            owner = copy.copy(value.__self__)
            for name, item in _attributes(owner).items():
                object.__setattr__(owner, name, self.of(item))  # It may be frozen.
            return types.MethodType(self.of(value.__func__), owner)
        if isinstance(value, functools.partial):
            keywords = {key: self.of(item) for key, item in value.keywords.items()}
            return functools.partial(self.of(value.func), *map(self.of, value.args), **keywords)
        if isinstance(value, dict):
            return type(value)((key, self.of(item)) for key, item in value.items())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.of, value))
        if isinstance(value, tuple | list):
            return type(value)(map(self.of, value))
        if _is_watched_map(value):
            return self.of(value.made_function.made)
        return self.of(value.__wrapped__)  # A jit, without which the program is the same.

    def _copy_function(self, function: types.FunctionType) -> types.FunctionType:
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        own_globals = dict(function.__globals__)
        copied = types.FunctionType(
            function.__code__, own_globals, function.__name__, function.__defaults__, cells
        )
        self._made[id(function)] = copied  # First, since a function may refer to itself.
        copied.__dict__.update(function.__dict__)
        copied.__qualname__, copied.__module__ = function.__qualname__, function.__module__
        copied.__doc__ = function.__doc__
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            if _is_filled(original):
                cell.cell_contents = self.of(original.cell_contents)
        for name in _global_names(function):
            own_globals[name] = self.of(own_globals[name])
        copied.__defaults__ = self.of(function.__defaults__)
        copied.__kwdefaults__ = self.of(function.__kwdefaults__)
        return copied


_FOLLOWED = (types.FunctionType, types.MethodType, functools.partial, dict, tuple, list)


def _are_devices(value: Any) -> bool:
    is_list = type(value) in (list, tuple) and len(value) > 1
    return is_list and all(isinstance(item, jax.Device) for item in value)


def _is_jitted(value: Any) -> bool:
    if isinstance(value, Watched):  # In a program that is audited while it runs.
        return value.made_function.kind == "jit"
    return callable(getattr(type(value), "lower", None)) and hasattr(value, "__wrapped__")


def _is_watched_map(value: Any) -> bool:
    return isinstance(value, Watched) and value.made_function.kind == "shard_map"


def _parts(value: Any) -> Iterator[Any]:
    """Yields the values through which a value may reach a mesh."""
    if isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            if _is_filled(cell):
                yield cell.cell_contents
        for name in _global_names(value):
            yield value.__globals__[name]
        yield value.__defaults__
        yield value.__kwdefaults__
    elif isinstance(value, types.MethodType):
        yield value.__func__
        yield from _attributes(value.__self__).values()
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, dict):
        yield from list(value.values())
    elif isinstance(value, tuple | list):
        yield from value
    elif _is_watched_map(value):
        yield value.made_function.made
    elif _is_jitted(value):
        yield value.__wrapped__


def _attributes(value: Any) -> dict[str, Any]:
    return {} if isinstance(value, type) else dict(getattr(value, "__dict__", {}))


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # An unassigned variable.
        return False


def _global_names(function: types.FunctionType) -> list[str]:
    """Returns the globals that a function and the functions inside it use; none for JAX's own."""
    if function.__code__.co_filename.startswith(package_folders("jax")):
        return []
    names: dict[str, None] = {}
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names.update(dict.fromkeys(code.co_names))
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return [name for name in names if name in function.__globals__]
