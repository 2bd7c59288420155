"""How the values of a body on n devices relate to the value over the global batch.

A body runs twice: on each of n devices with its shard of the batch, and once with the global batch
on a mesh of one device, where collectives are the identity. A value of the body is then v_0, ...,
v_(n-1) on the devices and V over the global batch, and its kind is the equation between them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np


class Relation(enum.Enum):
    """The equation between a device's value v and the global value V, up to a scale."""

    SAME = "a replicated value"  # v = V
    SHARD = "per-example values"  # v is the device's part of V along an axis
    SUM = "a sum over the device's own examples"  # V is the sum of all v
    MAX = "a maximum over the device's own examples"
    MIN = "a minimum over the device's own examples"
    FLAT = "gathered values"  # In the same order: (n, b) on a device, (1, n * b) in V
    FLAT_SUM = "a gathered sum"  # The same of a SUM
    SPLIT = "microbatches"  # (a, b / a) on a device, (a, n * b / a) in V
    TOTAL = "what a loop over the batch accumulates"  # A carry to which a loop only adds
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why a value has no version over the global batch."""

    operation: str  # The primitive that makes it so, or an argument.
    line: str | None  # Where it is in the user's code, as ``train.py:41``.
    why: str  # One sentence, that starts with a verb.

    def __str__(self) -> str:
        return f"{self.operation}{f' at {self.line}' if self.line else ''} {self.why}"


@dataclasses.dataclass(frozen=True)
class Kind:
    """An equation between the values on n devices and the global value."""

    relation: Relation
    # A power of n: SAME and SHARD are v = n**scale * V, SUM is sum(v) = n**scale * V; a mean over a
    # device's examples is a SUM of scale 1.
    scale: int = 0
    axis: int = -1  # Of SHARD, the sharded one; of FLAT, that of the devices.
    # Of SHARD, how many parts of the axis are each sharded in order, as after a concatenation along
    # the batch; 0: the value is constant along the axis. Of SPLIT, 0 where each microbatch has a
    # sum over its examples.
    segments: int = 1
    reason: Reason | None = None  # Of UNKNOWN, why.

    @property
    def is_scaled_value(self) -> bool:
        """Whether a device's value is the global one, or its part of that, up to a factor."""
        return self.relation in (Relation.SAME, Relation.SHARD)

    @property
    def is_exact(self) -> bool:
        """Whether a device's value is the global one, or its part of that, without a factor."""
        return self.is_scaled_value and self.scale == 0

    @property
    def is_linear(self) -> bool:
        """Whether a linear function of the value is of the same kind."""
        return self.is_scaled_value or self.relation is Relation.SUM

    @property
    def is_pointwise(self) -> bool:
        """Whether the shapes are equal and the equation holds element by element."""
        return self.relation in (Relation.SAME, Relation.SUM, Relation.MAX, Relation.MIN)

    def scaled(self, power: int) -> Kind:
        return dataclasses.replace(self, scale=self.scale + power)

    def along(self, axis: int, segments: int | None = None) -> Kind:
        segments = self.segments if segments is None else segments
        return dataclasses.replace(self, axis=axis, segments=segments)


SAME, SUM, MAX, MIN = map(Kind, (Relation.SAME, Relation.SUM, Relation.MAX, Relation.MIN))


def shard(axis: int, scale: int = 0, segments: int = 1) -> Kind:
    return Kind(Relation.SHARD, scale, axis, segments)


def unknown(reason: Reason) -> Kind:
    return Kind(Relation.UNKNOWN, reason=reason)


Pair = tuple[Any, Any]
"""A constant: its value on every device, and its value over the global batch."""


@dataclasses.dataclass(frozen=True)
class Value:
    """What is known of a value of the body."""

    kind: Kind
    # The constants that it is, if it is one and small.
    pair: Pair | None = dataclasses.field(default=None, compare=False)
    is_zero: bool = False  # Whether it is zero everywhere, which fits any scale and any sum.
    depends_on_batch: bool = False  # Whether it was computed from a sharded argument.
    # The value is the device's index times this; over the global batch it is zero.
    device_stride: int | None = None
    # Of an array of indices, the parts that were concatenated along its last dimension.
    columns: tuple[Value, ...] = ()

    @property
    def is_unknown(self) -> bool:
        return self.kind.relation is Relation.UNKNOWN


class UnprovenError(Exception):
    """An operation whose result has no known kind; the message says why, starting with a verb."""


def common_kind(values: Iterable[Value]) -> Kind | None:
    """Returns the kind that all of several values have, if there is one.

    A replicated value is also a SUM, of a scale higher by one, and zero is of any kind.

    >>> common_kind([Value(SUM.scaled(1)), Value(SAME)]) == SUM.scaled(1)
    True
    >>> common_kind([Value(SUM), Value(SAME)]) is None
    True
    """
    values = list(values)
    kinds = list(dict.fromkeys(value.kind for value in values if not value.is_zero))
    shards = [k for k in (v.kind for v in values) if k.relation is Relation.SHARD]
    if not kinds:
        return next(iter(shards), values[0].kind)
    if all(kind.is_scaled_value for kind in kinds):
        scales = {kind.scale for kind in kinds}
        places = {kind.axis for kind in shards}
        segments = {kind.segments for kind in shards} - {0}
        # A part that is constant along the axis is in order, however the axis is divided.
        if len(scales) != 1 or len(places) > 1 or len(segments) > 1:
            return None
        if not shards:
            return kinds[0]
        return shard(places.pop(), scales.pop(), segments.pop() if segments else 0)
    if len(kinds) == 1:
        return kinds[0]
    sums = {kind.scale for kind in kinds if kind.relation is Relation.SUM}
    others = {kind.scale + 1 for kind in kinds if kind.relation is Relation.SAME}
    are_sums = all(kind.relation in (Relation.SAME, Relation.SUM) for kind in kinds)
    return SUM.scaled(sums.pop()) if are_sums and len(sums) == 1 and others <= sums else None


def join(one: Value, other: Value) -> Value | None:
    """Returns what is known of a value that is one of two, if anything is."""
    kind = common_kind([one, other])
    if kind is None:
        return None
    return Value(
        kind,
        pair=one.pair if one.pair is not None and one.pair is other.pair else None,
        is_zero=one.is_zero and other.is_zero,
        depends_on_batch=one.depends_on_batch or other.depends_on_batch,
    )


def of_pair(pair: Pair, n: int, unrelated: Reason) -> Value:
    """Returns what is known of a constant.

    >>> of_pair((np.float32(1 / 4), np.float32(1 / 32)), 8, Reason("", None, "")).kind.scale
    1
    """
    local, global_ = pair
    if getattr(local, "dtype", None) != getattr(global_, "dtype", None):
        return Value(unknown(unrelated), pair)
    if local.ndim != global_.ndim or not _is_numeric(local.dtype):
        equal = np.shape(local) == np.shape(global_) and np.array_equal(local, global_)
        return Value(SAME if equal else unknown(unrelated), pair)
    is_zero = not np.any(local) and not np.any(global_)
    axes = [k for k in range(local.ndim) if local.shape[k] != global_.shape[k]]
    if not axes:
        scale = _scale_between(local, global_, n)
        return Value(unknown(unrelated) if scale is None else SAME.scaled(scale), pair, is_zero)
    [axis, *more] = axes
    if more or global_.shape[axis] != n * local.shape[axis] or not local.size:
        return Value(unknown(unrelated), pair, False)
    scale = _scale_between(np.concatenate([local] * n, axis), global_, n)
    if scale is None:
        return Value(unknown(unrelated), pair)
    is_constant = np.array_equal(local, np.broadcast_to(np.take(local, [0], axis), local.shape))
    return Value(shard(axis, scale, 0 if is_constant else 1), pair, is_zero)


def _scale_between(local: Any, global_: Any, n: int) -> int | None:
    """Returns the power of n by which constants of one shape differ, if it is one."""
    if np.array_equal(local, global_, equal_nan=_is_float(local.dtype)):
        return 0
    if local.dtype == np.bool_ or not np.all(np.isfinite(local) & np.isfinite(global_)):
        return None
    # Narrow floats are so coarse that 1 / (b - 1) is near 1 / b.
    is_wide = _is_float(local.dtype) and jnp.finfo(local.dtype).bits >= 32
    tolerance = 2 * float(jnp.finfo(local.dtype).eps) if is_wide else 0.0
    wide = np.complex128 if local.dtype.kind == "c" else np.float64
    for power in (-1, 1, -2, 2):
        expected = global_.astype(wide) * float(n) ** power
        if np.all(np.abs(local.astype(wide) - expected) <= tolerance * np.abs(expected)):
            return power
    return None


def _is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def _is_numeric(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_)
