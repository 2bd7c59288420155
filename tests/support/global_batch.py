"""Runs what a verdict claims: the body over the global batch against the body on each device."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapx._src.batch_parallel.global_function import global_function
from pmapx._src.batch_parallel.traces import PER_DEVICE
from pmapx._src.batch_parallel.verdict import decide


def verdict_of(body, arguments, axes, n, axis_name="i"):
    shards = [
        argument if axis is None else jax.tree.map(lambda x: x[0], argument)
        for argument, axis in zip(arguments, axes, strict=True)
    ]
    return decide(body, shards, axes, axis_name=axis_name, axis_size=n)


def merged(x, axis):
    """(n, ..., b, ...) to (..., n * b, ...)."""
    is_numpy = isinstance(x, np.ndarray)  # NumPy compiles nothing.
    return np.concatenate(x, axis) if is_numpy else jnp.concatenate(list(x), axis)


def global_arguments(arguments, axes):
    """Returns arguments with their shards concatenated."""
    return [
        argument if axis is None else jax.tree.map(lambda x: merged(x, axis), argument)
        for argument, axis in zip(arguments, axes, strict=True)
    ]


def global_results(verdict, mapped_results):
    """Returns the leaves of what a mapped body returned, in the form of the global batch."""
    found = []
    for leaf, output in zip(jax.tree.leaves(mapped_results), verdict.outputs, strict=True):
        if output.batch_axis is None:
            for each in leaf[1:]:
                np.testing.assert_array_equal(_data(each), _data(leaf[0]))
            found.append(leaf[0])
        else:
            found.append(merged(leaf, output.batch_axis))
    return found


def run_both(verdict, arguments, axes, mapped):
    """Returns the leaves of the mapped body, in the form of the global batch, and of the other."""
    whole = global_arguments(arguments, axes)
    expected = global_results(verdict, mapped(*arguments))
    return expected, jax.tree.leaves(jax.jit(global_function(verdict))(*whole))


def assert_close(expected, found, length):
    """Compares to a tolerance that follows from the type and the length of reductions."""
    for a, b in zip(expected, found, strict=True):
        a, b = _data(a), _data(b)
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jnp.inexact):
            original, a, b = a.dtype, a.astype(np.float64), b.astype(np.float64)
            size = max(1.0, float(np.max(np.abs(a[np.isfinite(a)]), initial=0)))
            tolerance = float(jnp.finfo(original).eps) * length
            np.testing.assert_allclose(a, b, rtol=8 * tolerance, atol=8 * tolerance * size)
        else:
            np.testing.assert_array_equal(a, b)


def _data(x):
    is_key = jnp.issubdtype(getattr(x, "dtype", np.float32), jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


__all__ = [
    "PER_DEVICE",
    "assert_close",
    "global_arguments",
    "global_results",
    "merged",
    "run_both",
    "verdict_of",
]
