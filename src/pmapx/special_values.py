"""``jax_debug_nans`` and ``jax_debug_infs``, for the results of a program.

JAX checks the results of a jit of ``shard_map`` the first time it finds such a value, and not
again: after the error, later calls of the same program pass.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check(result: Any, function: str) -> None:
    """Raises the error of JAX if a result has values that the flags look for."""
    for leaf in jax.tree.leaves(result):
        if not isinstance(leaf, jax.Array) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        for shard in leaf.addressable_shards:
            values = np.asarray(shard.data)
            if values.dtype.kind not in "fc":  # NumPy does not know small floats.
                values = values.astype(np.float32)
            _check(values, function)


def _check(values: np.ndarray[Any, Any], function: str) -> None:
    if jax.config.jax_debug_nans and np.isnan(values).any():  # type: ignore[attr-defined]
        raise FloatingPointError(f"Invalid value (nan) encountered in the result of {function}.")
    if jax.config.jax_debug_infs and np.isinf(values).any():  # type: ignore[attr-defined]
        raise FloatingPointError(f"Invalid value (inf) encountered in the result of {function}.")
