"""JAX's transforms as a watched program has them: a listener receives what they make.

``attach`` replaces the transforms for the program's own files; JAX and pmapx keep the originals.
Pmapped functions are watched where pmapx makes them, whatever name ``pmap`` was called by.
"""

from __future__ import annotations

import abc
import atexit
import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from pmapx._src import fastpath
from pmapx._src.legacy import install
from pmapx._src.legacy.patches import AfterImport, current
from pmapx._src.map.pmap import PmapImpl
from pmapx._src.watch import frames

_OLD_SHARD_MAP = "jax.experimental.shard_map"


@dataclasses.dataclass(eq=False)
class MadeFunction:
    """A function that the program made with a transform."""

    kind: str  # The transform, e.g. ``pmap`` or ``jit``.
    fun: Callable[..., Any]  # The function that it was given.
    made: Any  # What it returned.
    options: Mapping[str, Any]  # Its keyword arguments.
    state: Any = None  # For the listener.


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A call of a watched function, or of what it was compiled to; ``run`` makes it."""

    function: MadeFunction
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        return self.target(*self.args, **self.kwargs)


class Listener(abc.ABC):
    """Receives what a program does with JAX; each tool that watches programs has one."""

    transforms: tuple[str, ...] = ()  # Those whose functions it receives, besides ``pmap``.
    # Whether calls of what ``lower(...).compile()`` returns are calls of the function.
    has_stages = False
    has_indexing = False  # Whether it receives ``x[i]``.

    @abc.abstractmethod
    def made(self, function: MadeFunction) -> bool:
        """Receives a new function; ``frames.callers()`` made it. Returns whether to watch it."""

    @abc.abstractmethod
    def call(self, call: Call) -> Any:
        """Receives a call, runs it, and returns its result."""

    def stage(self, function: MadeFunction, make: Callable[[], Any]) -> Any:
        """Receives that a function is traced, lowered or compiled, by ``make``."""
        return make()

    # A listener may leave these two out.
    def index(self, x: jax.Array, index: Any) -> None:  # noqa: B027
        """Receives that an array is about to be indexed."""

    def end(self) -> None:  # noqa: B027
        """Receives that the program ends."""


def install_legacy_mode(records: Path) -> None:
    """Patches JAX before the program uses it; a hook, which writes no records."""
    install()


def attach(listener: Listener) -> None:
    """Sends all that this process does from now on to a listener."""
    for name in listener.transforms:
        setattr(jax, name, watching(listener, name, getattr(jax, name)))
    if "shard_map" in listener.transforms:
        AfterImport([_OLD_SHARD_MAP], functools.partial(_replace_shard_map, listener)).start()
    _watch_pmap(listener)
    if listener.has_indexing:
        _watch_indexing(listener)
    atexit.register(listener.end)


def watching(listener: Listener, kind: str, transform: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a transform that sends what it makes to a listener."""

    @functools.wraps(transform)
    def watched_transform(*args: Any, **kwargs: Any) -> Any:
        made = transform(*args, **kwargs)
        if frames.is_library(sys._getframe(1)):
            return made
        fun = args[0] if args else kwargs.get("fun", kwargs.get("f"))
        if callable(fun):
            return _watched(listener, MadeFunction(kind, fun, made, kwargs))
        if not callable(made):
            return made
        # jax.jit(static_argnums=0) and jax.shard_map(mesh=...) wait for their function.
        return lambda fun: _watched(listener, MadeFunction(kind, fun, made(fun), kwargs))

    return watched_transform


class Watched:
    """A function, or a stage of it, whose calls a listener receives; otherwise it is the same."""

    # Not in __dict__, which functools.wraps copies.
    __slots__ = ("__dict__", "__weakref__", "_listener", "_target", "made_function")

    def __init__(self, listener: Listener, function: MadeFunction, target: Any) -> None:
        self._listener = listener
        self._target = target
        self.made_function = function

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._listener.call(Call(self.made_function, self._target, args, kwargs))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if self._listener.has_stages and name in ("trace", "lower", "compile"):
            return functools.partial(self._stage, found)
        return found

    def __reduce__(self) -> Any:
        is_pmapped = self.made_function.kind == "pmap"
        # By its name, as functions are pickled.
        return self._target.__reduce__() if is_pmapped else self.__qualname__

    def _stage(self, make: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Watched:
        stage = self._listener.stage(self.made_function, lambda: make(*args, **kwargs))
        return Watched(self._listener, self.made_function, stage)


def _watched(listener: Listener, function: MadeFunction) -> Any:
    if not listener.made(function):
        return function.made
    watched: Any = Watched(listener, function, function.made)
    functools.update_wrapper(watched, function.made)
    watched.__wrapped__ = getattr(function.made, "__wrapped__", function.made)
    return watched


def _watch_pmap(listener: Listener) -> None:
    make = PmapImpl.as_function

    def as_function(mapped: PmapImpl) -> Any:
        pmapped: Any = make(mapped)
        options = {"donate_argnums": pmapped._pmapx.options.donated_argnums}
        return _watched(listener, MadeFunction("pmap", pmapped.__wrapped__, pmapped, options))

    PmapImpl.as_function = as_function  # type: ignore[method-assign, assignment]


def _replace_shard_map(listener: Listener, module: types.ModuleType) -> None:
    transform = current(module, "shard_map")
    if transform is not None:
        vars(module)["shard_map"] = watching(listener, "shard_map", transform)


def _watch_indexing(listener: Listener) -> None:
    array = fastpath.array_type()
    getitem = array.__getitem__

    def watched_getitem(x: Any, index: Any) -> Any:
        listener.index(x, index)
        return getitem(x, index)

    array.__getitem__ = watched_getitem
