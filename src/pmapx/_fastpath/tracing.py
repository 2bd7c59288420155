"""What a traced program depends on, and whether something is being traced."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import jax

from pmapx._fastpath import private
from pmapx._fastpath.pieces import Piece, Unlike
from pmapx.placement import NO_MESH


def trace_context() -> Hashable:
    """Returns what a traced program depends on beside its arguments and the mesh around it."""
    if TRACE_CONTEXT.is_usable():
        with jax.set_mesh(NO_MESH):
            context: Hashable = private.config.trace_context()
        return context
    return tuple(map(repr, jax.config.values.values()))


def _probe_trace_context() -> None:
    read = private.config.trace_context
    with jax.default_matmul_precision("float32"):
        other = read()
    if read() != read() or read() == other or hash(read()) != hash(read()):
        raise Unlike("the trace context does not follow the settings")


TRACE_CONTEXT = Piece("trace context", _probe_trace_context, "some settings may not retrace")


def _make_generation() -> Callable[[], object]:
    try:
        # JAX forgets what it returned with all other caches, and then makes another.
        generation: Callable[[], object] = private.util.cache()(object)
        return generation
    except Exception:
        return lambda: None


_generation = _make_generation()


def cache_generation() -> object:
    """Returns an object that is another one after ``jax.clear_caches()``."""
    return _generation()


def is_staging() -> bool:
    """Says whether something is being traced here, so that a call is to be recorded, not run."""
    return not private.core.trace_state_clean() if TRACE_STATE.is_usable() else _refuses_meshes()


def _refuses_meshes() -> bool:
    try:
        with jax.set_mesh(NO_MESH):  # Refused wherever something is being traced.
            return False
    except ValueError:
        return True


def _probe_trace_state() -> None:
    seen = []

    def look() -> float:
        seen.append((not private.core.trace_state_clean(), _refuses_meshes()))
        return 0.0

    look()
    jax.eval_shape(look)
    if seen != [(False, False), (True, True)]:
        raise Unlike(f"{seen} for whether something is being traced")


TRACE_STATE = Piece("trace state", _probe_trace_state, "each call takes some microseconds longer")
