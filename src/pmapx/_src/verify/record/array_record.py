"""One array of a call, as it is written down: enough to say later whether and how much it differs.

The bytes of an array are hashed whole. Its values are kept beside the hash: all of them if they are
few, else a sample at fixed places and sums over blocks. Where all rows along the first axis are
equal, as those of a train state of pmap are, only one of them is kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from pmapx._src.verify.limits import BLOCKS, SAMPLES, WHOLE_UP_TO

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Noted:
    """A leaf that was noted, and its values that are to be kept, in numpy's own types."""

    facts: dict[str, Any]
    values: Array | None = None
    sums: Array | None = None


def note(x: Array, dtype: str) -> Noted:
    """Notes an array; ``dtype`` is the name that JAX has for its type.

    >>> noted = note(np.ones((8, 3), np.float32), "float32")
    >>> noted.facts["has_equal_rows"], noted.values.shape
    (True, (3,))
    """
    x = np.ascontiguousarray(x).reshape(x.shape)
    has_equal_rows = rows_are_equal(x)
    unit = x[0] if has_equal_rows else x
    facts = {
        "shape": list(x.shape),
        "dtype": dtype,
        "digest": digest(x),
        "has_equal_rows": has_equal_rows,
        "row_digest": digest(unit) if has_equal_rows else None,
    }
    if unit.nbytes <= WHOLE_UP_TO:
        return Noted({**facts, "kept": "all"}, plain(unit))
    places = sample_places(unit.size)
    flat = unit.reshape(-1)
    return Noted({**facts, "kept": "sample"}, plain(flat[places]), block_sums(x))


def note_object(x: object) -> Noted:
    """Notes what is no array, such as a static argument: its type, and its value if that is plain.

    >>> note_object("adam").facts["text"]
    "'adam'"
    """
    kind = type(x)
    text = repr(x)[:200] if isinstance(x, (str, bytes, bool, int, float, type(None))) else ""
    return Noted({"object": f"{kind.__module__}.{kind.__qualname__}", "text": text})


def rows_are_equal(x: Array) -> bool:
    """Tells whether x has several rows along its first axis, all of the same bytes."""
    if x.ndim == 0 or len(x) < 2 or x.nbytes == 0:
        return False
    rows = x.reshape(len(x), -1).view(np.uint8)
    # In steps: most arrays are told by their first rows, and none needs much memory.
    step = max(1, WHOLE_UP_TO // rows.shape[1])
    return all(
        bool((rows[start : start + step] == rows[0]).all()) for start in range(1, len(rows), step)
    )


def digest(x: Array) -> str:
    """Returns a hash of the bytes of an array."""
    flat = np.ascontiguousarray(x).reshape(-1)
    return hashlib.blake2b(flat.view(np.uint8).data, digest_size=16).hexdigest()


def plain(x: Array) -> Array:
    """Returns values in a type that numpy has itself, none of them changed."""
    if x.dtype.kind in "biufc" and x.dtype.isbuiltin == 1:
        return x
    # bfloat16, float8 and int4 are exact in these.
    is_float = "float" in x.dtype.name
    return x.astype(np.float32 if is_float else np.int64)


def sample_places(size: int) -> npt.NDArray[np.int64]:
    """Returns the places of a sample, the same for every array of this size."""
    return np.unique(np.linspace(0, size - 1, SAMPLES).astype(np.int64))


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
