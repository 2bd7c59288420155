"""Tracebacks that lead to the user's operations past pmapx's own frames."""

from __future__ import annotations

import os

from pmapx._src.fastpath import jax_src


def _hide_frames() -> bool:
    """Makes JAX treat pmapx's files as its own; returns whether it does."""
    package = os.path.dirname(os.path.dirname(__file__)) + os.sep
    try:
        jax_src.traceback_util.register_exclusion(package)
    except Exception:  # A release that has no such function, or another one of that name.
        return False
    return True


# The twin leaves tracebacks as they are.
HAS_HIDDEN_FRAMES = _hide_frames()
