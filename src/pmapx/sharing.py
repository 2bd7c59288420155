"""What equal maps of one function share: ``pmap(f)(x)`` in a loop traces and compiles once.

What is shared hangs on the function itself and goes when it goes: a table beside it would have to
hold the function, since programs do. As with ``jax.jit``, only what is the same object is the same
function: methods and partials are made anew each time that they are named.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

import jax

from pmapx import _fastpath
from pmapx.options import Options

_ATTRIBUTE = "_pmapx_shared"
_TREES = ("in_axes", "out_axes", "compiler_options")
_LOCK = threading.Lock()


class Shared:
    """The programs of one function under one set of options.

    Attributes:
      lock: held while programs are made.
      programs: what was laid out, by signature.
      in_context: the jitted programs for meshes set around a trace.
      executables: what was compiled, by signature and settings.
      chosen: where ``AUTO`` put the mapped axis in each leaf of the result, by signature.
      has_inner_pmaps: whether pmaps were met inside; if so, their sizes are looked for first.
    """

    def __init__(self) -> None:
        """Starts with none."""
        self.lock = threading.RLock()
        self.has_inner_pmaps = False
        self.programs: dict[Any, Any] = {}
        self.in_context: dict[Any, Any] = {}
        self.executables: dict[Any, Any] = {}
        self.chosen: dict[Any, list[Any]] = {}

    def clear(self) -> None:
        """Forgets all programs."""
        self.programs.clear()
        self.in_context.clear()
        self.executables.clear()
        self.chosen.clear()


class _OfFunction:
    """What hangs on a function: what its maps share, by their options."""

    def __init__(self, fun: Callable[..., Any] | None = None, generation: Any = None) -> None:
        self.fun = fun
        self.generation = generation
        self.by_options: dict[Any, Shared] = {}

    def __reduce__(self) -> Any:
        # Pickled with the function by those who pickle functions whole; programs stay here.
        return _OfFunction, ()


def shared_by(fun: Callable[..., Any], options: Options) -> Shared:
    """Returns what all maps of ``fun`` with these options share."""
    if type(fun) is not types.FunctionType:
        return Shared()
    try:
        key = _key(options)
        hash(key)
    except TypeError:
        return Shared()
    generation = _fastpath.cache_generation()
    with _LOCK:
        found = vars(fun).get(_ATTRIBUTE)
        # A wrapper has a copy of what hung on the function that it wraps.
        if found is None or found.fun is not fun or found.generation is not generation:
            found = _OfFunction(fun, generation)
            vars(fun)[_ATTRIBUTE] = found
        return found.by_options.setdefault(key, Shared())


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
