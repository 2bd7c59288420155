"""What a traced program depends on, and whether something is being traced."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import jax

from pmapx._fastpath import private
from pmapx.placement import NO_MESH


def trace_context() -> Hashable:
    """Returns what a traced program depends on beside its arguments and the mesh around it."""
    if private.HAS_TRACE_CONTEXT:
        with jax.set_mesh(NO_MESH):
            context: Hashable = private.config.trace_context()
        return context
    return tuple(map(repr, jax.config.values.values()))


# JAX forgets what it returned with all other caches, and then makes another.
_generation: Callable[[], object] = (
    private.util.cache()(object) if private.HAS_CACHES else lambda: None
)


def cache_generation() -> object:
    """Returns an object that is another one after ``jax.clear_caches()``."""
    return _generation()


def is_staging() -> bool:
    """Says whether something is being traced here, so that a call is to be recorded, not run."""
    if private.HAS_TRACE_STATE:
        return not private.core.trace_state_clean()
    try:
        with jax.set_mesh(NO_MESH):  # Refused wherever something is being traced.
            return False
    except ValueError:
        return True
