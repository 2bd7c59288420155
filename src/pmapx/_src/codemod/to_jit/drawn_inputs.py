"""Random inputs like those of a call, and inputs with rounding errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmapx._src.codemod.to_jit.samples import Data, changed

Array = np.ndarray[Any, Any]


def drawn(data: Data, is_sharded: bool, generator: np.random.Generator) -> Data:
    """Returns a random leaf in the range of a given one.

    Batches are drawn anew; what is replicated is disturbed, as weights after some steps are.
    """
    if not isinstance(data, dict | np.ndarray | int | float | bool):
        return data
    return changed(data, lambda x: _drawn(x, is_sharded, generator))


def _drawn(x: Array, is_sharded: bool, generator: np.random.Generator) -> Array:
    if not x.size:
        return x
    if _is_float(x):
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        size = float(np.std(wide)) or float(np.max(np.abs(wide))) or 1.0
        if not np.isfinite(size):
            return x
        noise = generator.standard_normal(x.shape) * size
        new = (np.mean(wide) if is_sharded else wide) + noise * (1.0 if is_sharded else 0.1)
        # Second moments and weights of examples stay positive.
        is_positive = x.dtype.kind != "c" and bool((wide >= 0).all())
        new = np.abs(new) if is_positive else new
        return np.asarray(new.astype(x.dtype))
    if not is_sharded:
        return x
    if x.dtype.kind == "b":
        return np.asarray(generator.random(x.shape) < 0.5)
    if x.dtype.kind in "iu":
        low, high = int(x.min()), int(x.max())
        return np.asarray(generator.integers(low, high, x.shape, x.dtype, endpoint=True))
    return x


def rounded(data: Data, epsilon: float, generator: np.random.Generator) -> Data:
    """Returns a leaf with relative errors of the size of rounding errors."""
    if not isinstance(data, dict | np.ndarray | float):
        return data

    def change(x: Array) -> Array:
        if not _is_float(x):
            return x
        error = 1 + generator.choice([-1.0, 1.0], x.shape) * max(epsilon, _epsilon(x))
        return np.asarray((x * error).astype(x.dtype))

    return changed(data, change)


def _is_float(x: Array) -> bool:
    return x.dtype.kind in "fc" or "float" in x.dtype.name


def _epsilon(x: Array) -> float:
    import jax.numpy as jnp

    return float(jnp.finfo(x.dtype).eps)
