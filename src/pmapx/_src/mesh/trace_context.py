"""What a trace depends on besides its arguments, and when JAX drops its traces.

JAX keys its own traces by settings, context managers and user contexts, and has no public name for
that key. But it keeps a trace with the structure of its result, metadata included: a jitted
function that puts a new object there is traced once for each key, and returns that object whenever
the key is the same. ``jax.clear_caches()`` drops the object with the trace.
"""

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import jax

from pmapx._src.mesh.context_mesh import NO_MESH

_numbers = itertools.count()
_when_forgotten: list[Callable[[], None]] = []


class _Key:
    """Stands for one trace context, as long as JAX remembers its traces.

    Others hold its number alone: JAX has the only lasting reference to it.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        weakref.finalize(self, _forgotten).atexit = False


class _Carrier:
    """A pytree without leaves that has a key as its metadata."""

    def __init__(self, key: _Key) -> None:
        self.key = key


jax.tree_util.register_pytree_node(
    _Carrier, lambda carrier: ((), carrier.key), lambda key, _: _Carrier(key)
)


@jax.jit
def _traced_anew() -> Any:
    return _Carrier(_Key())


def trace_context() -> int:
    """Returns a number for what a trace depends on here, except for a context mesh."""
    with jax.set_mesh(NO_MESH):
        return watched_context()


def watched_context() -> int:
    """Returns a number for what a trace depends on here, and watches for its end."""
    return _traced_anew.eval_shape().key.number


def is_checking_nans() -> bool:
    """Whether JAX checks results for NaNs or infinities."""
    return bool(jax.config.jax_debug_nans or jax.config.jax_debug_infs)  # type: ignore[attr-defined]


def when_forgotten(callback: Callable[[], None]) -> None:
    """Registers a function to call when JAX drops its traces, as ``jax.clear_caches()`` does.

    JAX has to have traced in a watched context before.
    """
    _when_forgotten.append(callback)


def _forgotten() -> None:
    for callback in _when_forgotten:
        callback()
