"""One array of a call, as it is recorded: enough to tell later whether and how much it differs.

All bytes of an array are hashed. Its values are kept with the hash: all of them if they are few,
else a sample at fixed places and sums over blocks. If all shards along the leading axis are equal,
as in a stacked train state, only one of them is kept.
"""

import dataclasses
import hashlib
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from pmapx._src.verify.limits import ALL_VALUES_UP_TO, BLOCKS, SAMPLES

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Noted:
    """A leaf as it is recorded, and the values to keep, in dtypes of numpy."""

    facts: dict[str, Any]
    values: Array | None = None
    sums: Array | None = None


def note(x: Array, dtype: str) -> Noted:
    """Notes an array; ``dtype`` is JAX's name for its dtype.

    >>> noted = note(np.ones((8, 3), np.float32), "float32")
    >>> noted.facts["has_equal_shards"], noted.values.shape
    (True, (3,))
    """
    x = np.ascontiguousarray(x).reshape(x.shape)
    has_equal_shards = shards_are_equal(x)
    unit = x[0] if has_equal_shards else x
    facts = {
        "shape": list(x.shape),
        "dtype": dtype,
        "digest": digest(x),
        "has_equal_shards": has_equal_shards,
        "shard_digest": digest(unit) if has_equal_shards else None,
    }
    if unit.nbytes <= ALL_VALUES_UP_TO:
        return Noted({**facts, "kept": "all"}, plain(unit))
    # The same places of every array of this size.
    places = np.unique(np.linspace(0, unit.size - 1, SAMPLES).astype(np.int64))
    return Noted({**facts, "kept": "sample"}, plain(unit.reshape(-1)[places]), block_sums(x))


def note_object(x: object) -> Noted:
    """Records an object that is not an array, as a static argument: its type, and simple values.

    >>> note_object("adam").facts["text"]
    "'adam'"
    """
    kind = type(x)
    text = repr(x)[:200] if isinstance(x, (str, bytes, bool, int, float, type(None))) else ""
    return Noted({"object": f"{kind.__module__}.{kind.__qualname__}", "text": text})


def shards_are_equal(x: Array) -> bool:
    """Returns whether x has several shards along its leading axis, all equal to the bit."""
    if x.ndim == 0 or len(x) < 2 or x.nbytes == 0:
        return False
    shards = x.reshape(len(x), -1).view(np.uint8)
    # In steps: most arrays differ at their start, and none needs much memory.
    step = max(1, ALL_VALUES_UP_TO // shards.shape[1])
    return all(
        bool((shards[start : start + step] == shards[0]).all())
        for start in range(1, len(shards), step)
    )


def digest(x: Array) -> str:
    flat = np.ascontiguousarray(x).reshape(-1)
    return hashlib.blake2b(flat.view(np.uint8).data, digest_size=16).hexdigest()


def plain(x: Array) -> Array:
    """Returns the same values in a dtype of numpy."""
    if x.dtype.kind in "biufc" and x.dtype.isbuiltin == 1:
        return x
    # These represent bfloat16, float8 and int4 exactly.
    is_float = "float" in x.dtype.name
    return x.astype(np.float32 if is_float else np.int64)


def block_sums(x: Array) -> Array:
    """Returns the sum of each block of x, and the sum of its absolute values."""
    flat = x.reshape(-1)
    edges = np.linspace(0, flat.size, BLOCKS + 1).astype(np.int64)
    sums = np.zeros((2, BLOCKS), np.complex128 if x.dtype.kind == "c" else np.float64)
    for index, (start, end) in enumerate(itertools.pairwise(edges)):
        block = plain(flat[start:end]).astype(sums.dtype)
        with np.errstate(all="ignore"):
            sums[:, index] = block.sum(), np.abs(block).sum()
    return sums
