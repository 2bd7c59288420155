"""How much the outputs of a map and of its jitted version may differ, and how much they do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pmapx._src.codemod.to_jit.samples import Data, parts

Array = np.ndarray[Any, Any]
# A sum in another order has errors of about this many units in the last place, by its length.
UNITS = 8
# Relative to the largest value, whatever the length: beyond it, outputs count as different.
MOST = 2e-3
# How far an output may be from the map's, in differences that rounding errors in the inputs make.
TIMES_NOISE = 32


def limit(expected: Array, noise: float, epsilon: float, length: int) -> float:
    """Returns the difference that an output may have.

    ``epsilon`` is the precision of the narrowest float of the body, ``length`` the number of
    elements that a reduction over the global batch may have, and ``noise`` what rounding errors in
    the inputs make of this output, which is large where a function is steep.
    """
    finite = np.abs(expected[np.isfinite(expected)])
    largest = float(finite.max()) if finite.size else 0.0
    by_length = UNITS * epsilon * math.sqrt(length)
    relative = min(by_length, max(MOST, UNITS * epsilon))
    return relative * largest + TIMES_NOISE * noise


def difference(
    expected: Data, found: Data, noise: float, epsilon: float, length: int
) -> tuple[float, str]:
    """Returns how far an output is from the map's, as a part of the limit, and in words.

    Infinite if it has another shape or type, or is not a number where the map's is.
    """
    worst, words = 0.0, ""
    if isinstance(found, dict) and not isinstance(expected, dict):
        # State that FSDP shards over processes was replicated.
        replicated = np.asarray(expected)
        expected = {key: replicated[tuple(slice(*part) for part in key)] for key in found}
    pairs = (
        [(expected[key], found.get(key)) for key in expected]
        if isinstance(expected, dict) and isinstance(found, dict)
        else [(np.asarray(expected), np.asarray(found))]
    )
    if isinstance(expected, dict) != isinstance(found, dict):
        return math.inf, "has another sharding"
    for one, other in pairs:
        if other is None or one.shape != other.shape:
            return math.inf, f"has shape {getattr(other, 'shape', None)}, not {one.shape}"
        if one.dtype != other.dtype:
            return math.inf, f"has type {other.dtype}, not {one.dtype}"
        if not (one.dtype.kind in "fc" or "float" in one.dtype.name):
            if not np.array_equal(one, other):
                return math.inf, "differs, and is not a floating-point number"
            continue
        kind = np.complex128 if one.dtype.kind == "c" else np.float64
        a, b = one.astype(kind), other.astype(kind)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return math.inf, "is not finite in the same places"
        allowed = limit(a, noise, epsilon, length)
        gap = np.abs(a - b)[np.isfinite(a)]
        largest = float(gap.max()) if gap.size else 0.0
        part = largest / allowed if allowed else (0.0 if largest == 0 else math.inf)
        if part >= worst:
            worst = part
            words = f"differs by {largest:.2g}, of which {allowed:.2g} can be rounding"
    return worst, words


def relative(expected: Sequence[Data], found: Sequence[Data]) -> float:
    """Returns the difference of all outputs together, relative to their norm."""
    gap = size = 0.0
    pairs = zip(expected, found, strict=False)
    for one, other in (p for e, f in pairs for p in zip(parts(e), parts(f), strict=False)):
        if one.shape != other.shape or not (one.dtype.kind in "fc" or "float" in one.dtype.name):
            continue
        kind = np.complex128 if one.dtype.kind == "c" else np.float64
        a, b = one.astype(kind), other.astype(kind)
        finite = np.isfinite(a) & np.isfinite(b)
        size += float(np.sum(np.abs(a[finite]) ** 2))
        gap += float(np.sum(np.abs((a - b)[finite]) ** 2))
    return math.sqrt(gap / size) if size else float(gap > 0)
