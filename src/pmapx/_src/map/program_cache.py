"""The programs of one function under one set of options, shared by equal pmaps.

``pmap(f)(x)`` in a loop traces and compiles once. Programs live as long as their function, so the
table here refers to it weakly. As with ``jax.jit``, functions are compared by identity: methods and
partials are new objects each time. ``jax.clear_caches()`` drops all programs.
"""

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax

from pmapx._src.map.options import Options
from pmapx._src.map.program import Executable, Program
from pmapx._src.mesh import trace_context
from pmapx._src.spmd import nesting
from pmapx._src.spmd.axes import Axis
from pmapx._src.trees.signature import Signature

_TREES = ("in_axes", "out_axes", "compiler_options")
_LOCK = threading.RLock()


class ProgramCache:
    """Owns the programs of one function: those to trace, and those that are compiled."""

    def __init__(self, reference: Callable[[], Callable[..., Any] | None]) -> None:
        """Starts empty; ``reference`` returns the function, without keeping it alive."""
        self.call = functools.partial(_call, reference)
        self.has_inner_pmaps = False  # A trace met pmaps inside: the mesh needs axes for them.
        self._lock = threading.RLock()
        self._programs: dict[Hashable, Program] = {}
        self._executables: dict[Hashable, Executable] = {}
        self._auto_out_axes: dict[Signature, list[Axis]] = {}
        self._last_compiled: weakref.WeakKeyDictionary[Any, Signature] = weakref.WeakKeyDictionary()
        with _LOCK:
            _LIVE.add(self)

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Builds programs in one thread at a time, outside of any pmap that is being traced."""
        with self._lock, nesting.entered(None):
            yield

    def program(self, key: Hashable, build: Callable[[], Program]) -> Program:
        program = self._programs.get(key)
        if program is None:
            trace_context.watched_context()  # Programs are dropped with JAX's traces.
            program = self._programs[key] = build()
        return program

    def executable(self, key: Hashable, compile: Callable[[], Executable]) -> Executable:
        executable = self._executables.get(key)
        if executable is None:
            with self.building():
                executable = self._executables.get(key)
                if executable is None:
                    executable = self._executables[key] = compile()
        return executable

    def auto_out_axes(self, signature: Signature) -> list[Axis]:
        """Returns the list in which a trace notes the axes that it chooses for ``AUTO``."""
        return self._auto_out_axes.setdefault(signature, [])

    def swap_last_compiled(self, owner: Any, signature: Signature) -> Signature | None:
        """Notes what a pmapped function compiles; returns what it compiled before."""
        before = self._last_compiled.get(owner)
        self._last_compiled[owner] = signature
        return before

    def built(self) -> list[Program | Executable]:
        return [*self._programs.values(), *self._executables.values()]

    def clear(self) -> None:
        """Drops all programs, once those that are being built are complete."""
        with self._lock:
            self.drop()

    def drop(self) -> None:
        """Drops all programs at once; the garbage collector calls this, so it takes no lock."""
        self._programs.clear()
        self._executables.clear()
        self._auto_out_axes.clear()
        self._last_compiled.clear()


def _call(reference: Callable[[], Callable[..., Any] | None], *args: Any, **kwargs: Any) -> Any:
    fun = reference()
    assert fun is not None, "a pmapped function holds the function that it maps"
    return fun(*args, **kwargs)


_LIVE: weakref.WeakSet[ProgramCache] = weakref.WeakSet()
_BY_FUNCTION: weakref.WeakKeyDictionary[Any, dict[Any, ProgramCache]] = weakref.WeakKeyDictionary()


def unshared(fun: Callable[..., Any]) -> ProgramCache:
    """Returns a cache for one pmapped function alone."""
    return ProgramCache(lambda: fun)


def shared_by(fun: Callable[..., Any], options: Options) -> ProgramCache:
    """Returns the cache of all pmaps of ``fun`` with these options, or one for this pmap alone."""
    try:
        key = _key(options)
        hash(key)
    except TypeError:
        key = None
    if key is None or type(fun) is not types.FunctionType:
        return unshared(fun)
    with _LOCK:
        by_options = _BY_FUNCTION.setdefault(fun, {})
        if key not in by_options:
            by_options[key] = ProgramCache(weakref.ref(fun))
        return by_options[key]


def _drop_all() -> None:
    with _LOCK:
        live = list(_LIVE)
    for cache in live:
        cache.drop()


trace_context.when_forgotten(_drop_all)


def _key(options: Options) -> Any:
    """Returns the options as a key in which 1, 1.0 and True differ."""
    key: list[Any] = []
    for name, value in vars(options).items():
        if name in _TREES and type(value) is not int and value is not None:
            leaves, tree = jax.tree.flatten(value, is_leaf=lambda x: x is None)
            key.append((tree, tuple((type(leaf), leaf) for leaf in leaves)))
        else:
            key.append((type(value), value))
    return tuple(key)
