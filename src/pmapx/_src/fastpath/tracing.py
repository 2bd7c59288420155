"""Whether something is being traced, the structure of what was, and tracebacks."""

import jax

from pmapx._src.errors.base import package_folders
from pmapx._src.fastpath import jax_src
from pmapx._src.fastpath.probes import Piece, Unlike
from pmapx._src.mesh.context_mesh import NO_MESH


def is_staging() -> bool:
    """Whether something is being traced, so that a call is to be recorded, not run."""
    return not jax_src.core.trace_state_clean() if TRACE_STATE.is_usable() else _refuses_meshes()


def _refuses_meshes() -> bool:
    try:
        with jax.set_mesh(NO_MESH):  # Refused wherever something is being traced.
            return False
    except ValueError:
        return True


def _probe_trace_state() -> None:
    seen = []

    def look() -> float:
        seen.append((not jax_src.core.trace_state_clean(), _refuses_meshes()))
        return 0.0

    look()
    jax.eval_shape(look)
    # The first call of a program may be traced itself.
    if seen not in ([(False, False), (True, True)], [(True, True), (True, True)]):
        raise Unlike(f"{seen} for whether something is being traced")


TRACE_STATE = Piece("trace state", _probe_trace_state, "each call takes some microseconds longer")


def out_tree(traced: jax.stages.Traced) -> jax.tree_util.PyTreeDef:
    found = getattr(traced, "out_tree", None)  # Not in JAX 0.8.
    if found is None and not jax_src.PUBLIC_ONLY:
        found = getattr(traced, "_out_tree", None)
    return traced.lower().out_tree if found is None else found


def _hide_frames() -> bool:
    """Makes JAX treat pmapx's files as its own; returns whether it does."""
    try:
        jax_src.traceback_util.register_exclusion(*package_folders("pmapx._src"))
    except Exception:  # A release that has no such function, or another one of that name.
        return False
    return True


# The twin leaves tracebacks as they are.
HAS_HIDDEN_FRAMES = _hide_frames()
