"""Two leaves, one of each version: equal to the bit, within tolerance, or different and how.

Shapes may differ if the migrated code holds the same values in another form: an array of equal
shards may now be one replicated array, and the leading device axis may be merged into the next.
"""

import dataclasses
import enum
import itertools
from typing import Any

import numpy as np

from pmapx._src.verify import limits
from pmapx._src.verify.record.array_record import Array
from pmapx._src.verify.record.reader import Records

# Relative to the largest value of an array: what summation in another order changes.
_BY_TYPE = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float": 1e-9,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float16": 1e-2,
    "bfloat16": 3e-2,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """A difference up to ``atol + rtol * |before|`` is within tolerance.

    The default depends on the dtype: float32 may differ by 1e-5 of the array's largest value,
    float64 by 1e-9, float16 by 1e-2 and bfloat16 by 3e-2; integers and booleans not at all.

    >>> Tolerance().limit(np.array([1.0, 1000.0]), "float32")
    array([0.01, 0.01])
    >>> Tolerance(rtol=0.5, atol=0).limit(np.array([1.0, 1000.0]), "float32")
    array([  0.5, 500. ])
    """

    rtol: float | None = None
    atol: float | None = None

    def limit(self, before: Array, dtype: str) -> Array:
        size = np.abs(_wide(before))
        if self.rtol is None and self.atol is None:
            finite = size[np.isfinite(size)]
            largest = float(finite.max()) if finite.size else 0.0
            narrow = 0.25 if dtype.startswith("float8") else 0.0
            return np.full(size.shape, _BY_TYPE.get(dtype, narrow) * largest)
        with np.errstate(invalid="ignore"):
            return np.asarray((self.atol or 0.0) + (self.rtol or 0.0) * size)

    def __str__(self) -> str:
        if self.rtol is None and self.atol is None:
            return "1e-05 of the largest value for float32"
        return f"rtol {self.rtol or 0.0:g}, atol {self.atol or 0.0:g}"


_SCALARS = {"bool": "b", "int": "iu", "float": "f", "complex": "c"}


class Grade(enum.IntEnum):
    """How well two values agree, the worst last."""

    EQUAL = 0
    WITHIN = 1
    DIFFERENT = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Agreement:
    """How two leaves agree.

    ``form`` describes how shapes of the same values differ; ``factor`` is their ratio, if it is one
    number.
    """

    grade: Grade
    detail: str = ""
    form: str = ""
    factor: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedLeaf:
    """A leaf as it was recorded, and the records with its values."""

    records: Records
    leaf: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.leaf["shape"])

    @property
    def has_equal_shards(self) -> bool:
        """Whether all its shards are equal, so that only one of them was kept."""
        return bool(self.leaf["has_equal_shards"])

    def values(self) -> Array | None:
        """Returns its values, if all of them were kept."""
        if self.leaf.get("kept") != "all":
            return None
        values = self.records.values(self.leaf)
        if values is None or not self.has_equal_shards:
            return values
        return np.broadcast_to(values, self.shape)

    def unit(self) -> Array | None:
        """Returns the values that were kept: of one shard if all are equal, a sample of many."""
        return self.records.values(self.leaf)

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """The shape of what was kept or sampled."""
        return self.shape[1:] if self.has_equal_shards else self.shape


def compare(before: RecordedLeaf, after: RecordedLeaf, tolerance: Tolerance) -> Agreement:
    if "gone" in before.leaf or "gone" in after.leaf:
        return Agreement(Grade.EQUAL)
    if "object" in before.leaf or "object" in after.leaf:
        return _objects(before.leaf, after.leaf)
    was, now = before.leaf["dtype"], after.leaf["dtype"]
    if was != now and not _is_scalar_of(was, now) and not _is_scalar_of(now, was):
        return Agreement(Grade.DIFFERENT, f"{was} became {now}")
    form = same_form(before, after)
    if form is None:
        return Agreement(Grade.DIFFERENT, _shapes(before, after))
    if _digest(before, after) == _digest(after, before):
        return Agreement(Grade.EQUAL, form=form)
    return _values(before, after, tolerance, form)


def same_form(before: RecordedLeaf, after: RecordedLeaf) -> str | None:
    """Describes how shapes of the same values differ; "" if they are equal.

    Returns None if the values cannot be the same.
    """
    was, now = before.shape, after.shape
    if was == now:
        return ""
    if (before.has_equal_shards or was[:1] == (1,)) and was[1:] == now:
        return f"{was} of equal shards is one replicated {now}"
    if (after.has_equal_shards or now[:1] == (1,)) and now[1:] == was:
        return f"{was} is now {now} of equal shards"
    is_merged = any(
        len(one) > 1 and (one[0] * one[1], *one[2:]) == other
        for one, other in ((was, now), (now, was))
    )
    return f"{was} is now {now}" if is_merged else None


def times(was: Array, now: Array, *, within: float = 1e-3) -> float | None:
    """Returns the factor between two arrays if there is one, other than 1.

    >>> times(np.array([1.0, -2.0]), np.array([8.0, -16.0]))
    8.0
    """
    if was.shape != now.shape or was.dtype.kind not in "fiu" or was.size == 0:
        return None
    x, y = was.reshape(-1).astype(np.float64), now.reshape(-1).astype(np.float64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()) or not x.any() or not y.any():
        return None
    factor = float(x @ y / (x @ x))
    residual = np.linalg.norm(y - factor * x) / np.linalg.norm(y)
    return factor if residual <= within and abs(factor - 1) > 1e-2 else None


def _objects(was: dict[str, Any], now: dict[str, Any]) -> Agreement:
    names = [leaf.get("object", leaf.get("dtype", "")) for leaf in (was, now)]
    if names[0].rpartition(".")[2] != names[1].rpartition(".")[2]:
        return Agreement(Grade.DIFFERENT, f"{names[0]} became {names[1]}")
    if was.get("text") != now.get("text"):
        return Agreement(Grade.DIFFERENT, f"{was.get('text')} became {now.get('text')}")
    return Agreement(Grade.EQUAL)


def _is_scalar_of(scalar: str, dtype: str) -> bool:
    """Returns whether a Python number may be an array of this dtype in the other version."""
    kinds = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
    return any(
        dtype.startswith(kinds[kind]) or dtype == "bfloat16" for kind in _SCALARS.get(scalar, "")
    )


def _digest(noted: RecordedLeaf, other: RecordedLeaf) -> str:
    is_stacked = noted.has_equal_shards and noted.shape[1:] == other.shape
    return str(noted.leaf["shard_digest" if is_stacked else "digest"])


def _shapes(before: RecordedLeaf, after: RecordedLeaf) -> str:
    text = f"shape {before.shape} became {after.shape}"
    if before.shape[1:] == after.shape:
        return f"{text}, though its shards differ"
    return text + _swapped(before.values(), after.values())


def _swapped(was: Array | None, now: Array | None) -> str:
    """Describes which two axes were swapped, if nothing else changed."""
    if was is None or now is None or was.ndim != now.ndim or was.ndim > 6:
        return ""
    for first, second in itertools.combinations(range(was.ndim), 2):
        turned = np.swapaxes(now, first, second)
        if turned.shape == was.shape and np.allclose(turned, was, rtol=1e-4, equal_nan=True):
            return f", the same with axes {first} and {second} swapped"
    return ""


def _values(
    before: RecordedLeaf, after: RecordedLeaf, tolerance: Tolerance, form: str
) -> Agreement:
    has_lost = (
        before.shape == after.shape
        and before.shape[:1] == (before.records.devices,)
        and before.has_equal_shards
        and not after.has_equal_shards
    )
    was, now, sampled = _comparable(before, after)
    if was is None or now is None:
        text = "it differs, by an unknown amount: too much was recorded to keep its values"
        return Agreement(Grade.DIFFERENT, text, form)
    limit = tolerance.limit(was, before.leaf["dtype"])
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(_wide(now) - _wide(was))
    apart = np.where((was == now) | (np.isnan(was) & np.isnan(now)), 0.0, apart)
    if before.leaf["dtype"] != after.leaf["dtype"] and not sampled and not np.any(apart):
        # A Python number has more bits than the array that it becomes.
        return Agreement(Grade.EQUAL, form=form)
    is_within = bool(np.all(apart <= limit)) and not has_lost
    factor = times(was, now)
    text = _amount(was, now, apart) if factor is None else f"about {factor:.3g} times as large"
    text += sampled
    if is_within and sampled and not _sums_agree(before, after, tolerance):
        return Agreement(Grade.DIFFERENT, "it differs between the sampled values", form)
    if is_within:
        return Agreement(Grade.WITHIN, text, form)
    if has_lost:
        text = f"equal on all devices before, and not after{'; ' + text if text else ''}"
    elif not sampled:
        text += _swapped(before.values(), after.values())
    return Agreement(Grade.DIFFERENT, text, form, factor)


def comparable(before: RecordedLeaf, after: RecordedLeaf) -> tuple[Array, Array] | None:
    """Returns values of two leaves at the same places, as float64; None if none were kept."""
    if same_form(before, after) is None:
        return None
    was, now, _ = _comparable(before, after)
    if was is None or now is None or was.shape != now.shape or was.dtype.kind not in "fiu":
        return None
    return was.astype(np.float64), now.astype(np.float64)


def _comparable(
    before: RecordedLeaf, after: RecordedLeaf
) -> tuple[Array | None, Array | None, str]:
    """Returns values at the same places of both, and a note if they are a sample."""
    if before.leaf.get("kept") == "sample" and after.leaf.get("kept") == "sample":
        if before.has_equal_shards == after.has_equal_shards or before.shape != after.shape:
            size = int(np.prod(before.unit_shape, dtype=np.int64))
            if size == int(np.prod(after.unit_shape, dtype=np.int64)):
                was, now = before.unit(), after.unit()
                return was, now, f" (of {limits.SAMPLES:,} sampled values of {size:,})"
        was, now = (side.records.values(side.leaf, "sums") for side in (before, after))
        both = (None, None) if was is None or now is None else (was[0], now[0])
        return *both, " (in sums over blocks)"
    if before.shape == after.shape:
        return before.values(), after.values(), ""
    was, now = before.values(), after.values()
    if was is None or now is None:
        return None, None, ""
    if was.size == now.size:
        return was.reshape(-1), now.reshape(-1), ""
    return (was[0], now, "") if was.ndim > now.ndim else (was, now[0], "")


def _sums_agree(before: RecordedLeaf, after: RecordedLeaf, tolerance: Tolerance) -> bool:
    was, now = (side.records.values(side.leaf, "sums") for side in (before, after))
    unit = before.unit()
    if was is None or now is None or unit is None or before.shape != after.shape:
        return True
    # Errors within tolerance may all have the same sign.
    count = int(np.prod(before.shape, dtype=np.int64)) / limits.BLOCKS
    largest = np.abs(unit).max(initial=0)
    each = tolerance.limit(np.asarray([largest]), before.leaf["dtype"])[0]
    with np.errstate(invalid="ignore"):
        apart = np.abs(now[0] - was[0])
    return bool(np.all(np.isnan(apart) | (apart <= each * count + 1e-9 * np.abs(was[1]))))


def _wide(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _amount(was: Array, now: Array, apart: Array) -> str:
    if not apart.size or not np.any(apart):
        return "other bits of the same values" if apart.size else ""
    if np.isnan(apart).any() or np.isinf(apart).any():
        count = int(np.sum(~np.isfinite(apart)))
        return f"{count:,} values are NaN or infinite in one version only"
    place = np.unravel_index(int(np.argmax(apart)), apart.shape)
    shown = f"{_shown(was[place])} became {_shown(now[place])}"
    count = int(np.sum(apart > 0))
    where = f" at {tuple(map(int, place))}" if apart.ndim else ""
    return f"by up to {float(apart.max()):.3g} ({shown}{where}), in {count:,} of {apart.size:,}"


def _shown(x: Any) -> str:
    return f"{x:.6g}" if np.asarray(x).dtype.kind in "fc" else str(x)
