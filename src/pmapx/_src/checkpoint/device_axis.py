"""The leading device axis of an array: its size, whether its copies are equal, how to add it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmapx._src.checkpoint.base import CheckpointError
from pmapx._src.trees.checked_leaves import is_key


def common_size(shapes: dict[str, tuple[int, ...]]) -> int:
    """Returns the leading size that all arrays share; ``shapes`` are by path, without scalars."""
    if not shapes:
        raise CheckpointError("no array has a leading axis: the checkpoint is not stacked")
    by_size: dict[int, str] = {}
    for path, shape in shapes.items():
        by_size.setdefault(shape[0], path)
    if len(by_size) > 1:
        shown = ", ".join(f"{path} has {size}" for size, path in list(by_size.items())[:3])
        raise CheckpointError(
            f"the leading sizes differ ({shown}): the checkpoint is not stacked, or only a part of "
            "it is; pass the number of devices with -n"
        )
    (size,) = by_size
    if size == 0:
        raise CheckpointError("the arrays are empty: their leading axis has size 0")
    return size


def first_copy(array: Any) -> Any:
    """Returns the copy of device 0, in its own memory."""
    return array[0] if isinstance(array, jax.Array) else array[0, ...].copy()


def copies(array: Any, n: int) -> Any:
    library: Any = jnp if isinstance(array, jax.Array) else np
    stacked = library.broadcast_to(array, (n, *array.shape))
    return stacked if library is jnp else stacked.copy()


def difference(array: Any) -> str | None:
    """Describes how the copies of an array differ; None if they are equal to the bit.

    >>> difference(np.array([[1.0, 2.0], [1.0, 2.5], [1.0, 2.0]]))
    "device 1's copy differs from device 0's in 1 of 2 values, by up to 0.5"
    """
    array = np.asarray(jax.random.key_data(array) if is_key(array) else array)
    first = _bytes(array[0, ...])
    unequal = [i for i in range(1, len(array)) if not np.array_equal(first, _bytes(array[i, ...]))]
    if not unequal:
        return None
    others = f" (and {len(unequal) - 1} more)" if len(unequal) > 1 else ""
    amount = _amount(array[0, ...], array[unequal[0], ...])
    return f"device {unequal[0]}'s copy{others} differs from device 0's {amount}"


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def _amount(first: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> str:
    try:
        wide = np.complex128 if np.iscomplexobj(first) else np.float64
        a, b = first.astype(wide), other.astype(wide)
    except (TypeError, ValueError):  # Text and raw bytes.
        return "in its values"
    # NaNs on both sides are equal; their bits need not be.
    differing = (a != b) & ~(np.isnan(a) & np.isnan(b))
    if not differing.any():
        return "in the signs of zeros or the bits of NaNs"
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(a - b)[differing]
    size = f", by up to {np.nanmax(gap):.3g}" if np.isfinite(gap).any() else ""
    return f"in {differing.sum()} of {differing.size} values{size}"
