"""What equal pmaps of one function share: ``pmap(f)(x)`` in a loop traces and compiles once.

Programs are kept for as long as their function lives, so they refer to it weakly: the table here
is no reason for it to live. As with ``jax.jit``, only what is the same object is the same
function: methods and partials are made anew each time that they are named. And as there, all is
dropped with ``jax.clear_caches()``.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax

from pmapx._src.map.options import Options
from pmapx._src.mesh import trace_context

_TREES = ("in_axes", "out_axes", "compiler_options")
_LOCK = threading.RLock()


class Shared:
    """The programs of one function under one set of options.

    Attributes:
      lock: held while programs are made.
      reference: returns the function.
      programs: what was laid out, by signature.
      in_context: the jitted programs for meshes set around a trace.
      executables: what was compiled, by signature and settings.
      chosen: where ``AUTO`` put the mapped axis in each leaf of the result, by signature.
      latest: the signature that each pmapped function compiled last.
      has_inner_pmaps: whether pmaps were met inside; if so, their sizes are looked for first.
    """

    def __init__(self, reference: Callable[[], Callable[..., Any] | None]) -> None:
        """Starts with none."""
        self.lock = threading.RLock()
        self.reference = reference
        self.has_inner_pmaps = False
        self.programs: dict[Any, Any] = {}
        self.in_context: dict[Any, Any] = {}
        self.executables: dict[Any, Any] = {}
        self.chosen: dict[Any, list[Any]] = {}
        self.latest: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        with _LOCK:
            _LIVE.add(self)

    def clear(self) -> None:
        """Forgets all programs."""
        self.programs.clear()
        self.in_context.clear()
        self.executables.clear()
        self.chosen.clear()
        self.latest.clear()

    @property
    def call(self) -> Callable[..., Any]:
        """Calls the function, and does not hold it where it is shared."""
        return functools.partial(_call, self.reference)


def _call(reference: Callable[[], Callable[..., Any] | None], *args: Any, **kwargs: Any) -> Any:
    fun = reference()
    assert fun is not None, "a pmapped function holds the function that it maps"
    return fun(*args, **kwargs)


_LIVE: weakref.WeakSet[Shared] = weakref.WeakSet()
_BY_FUNCTION: weakref.WeakKeyDictionary[Any, dict[Any, Shared]] = weakref.WeakKeyDictionary()


def sole(fun: Callable[..., Any]) -> Shared:
    """Returns what one pmapped function has for itself."""
    return Shared(lambda: fun)


def shared_by(fun: Callable[..., Any], options: Options) -> Shared:
    """Returns what all pmaps of ``fun`` with these options share."""
    if type(fun) is not types.FunctionType:
        return sole(fun)
    try:
        key = _key(options)
        hash(key)
    except TypeError:
        return sole(fun)
    with _LOCK:
        by_options = _BY_FUNCTION.setdefault(fun, {})
        if key not in by_options:
            by_options[key] = Shared(weakref.ref(fun))
        return by_options[key]


def _clear_all() -> None:
    with _LOCK:
        live = list(_LIVE)
    for shared in live:
        shared.clear()


trace_context.when_forgotten(_clear_all)


def _key(options: Options) -> Any:
    """Returns the options as something with a hash, in which 1, 1.0 and True differ."""
    key = []
    for name, value in vars(options).items():
        if name in _TREES and type(value) is not int and value is not None:
            leaves, tree = jax.tree.flatten(value, is_leaf=lambda x: x is None)
            key.append((tree, tuple((type(leaf), leaf) for leaf in leaves)))
        else:
            key.append((type(value), value))
    return tuple(key)
