"""One equation of a body in both of its traces, and what rules need to know of it."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from pmapx._src.batch_parallel.kinds import Kind, Relation, UnprovenError, Value, common_kind
from pmapx._src.replication import jaxprs

Shapes = tuple[tuple[int, ...], tuple[int, ...]]
Result = Kind | Value | Sequence[Kind | Value]
Rule = Callable[["Step"], Result]
"""From an equation to the kinds of its results: one for all of them, or one each."""


OTHER_SHAPE = "has a shape that depends on the number of devices, or unusually on the batch size"
PAIRS = "pairs each example with the others on its device"
_OTHER_ORDER = "pairs examples that are in a different order over the global batch"


@dataclasses.dataclass
class Step:
    """An equation."""

    eqn: JaxprEqn  # As each device runs it.
    twin: JaxprEqn  # The same with the global batch.
    values: list[Value]  # What is known of its operands.
    n: int  # The number of devices.
    axis_name: Hashable  # Of the mapped axis.
    # Set by the rule of a collective: by which power of n its result is multiplied over the global
    # batch, where the collective is the identity.
    power: int = 0

    @property
    def kinds(self) -> list[Kind]:
        return [value.kind for value in self.values]

    @property
    def name(self) -> str:
        return str(self.eqn.primitive.name)

    def shapes(self, operand: int = 0) -> Shapes:
        return shape_of(self.eqn.invars[operand]), shape_of(self.twin.invars[operand])

    def out_shapes(self, result: int = 0) -> Shapes:
        return shape_of(self.eqn.outvars[result]), shape_of(self.twin.outvars[result])

    def dtype(self, operand: int = 0) -> Any:
        return dtype_of(self.eqn.invars[operand])

    def out_dtype(self) -> Any:
        return dtype_of(self.eqn.outvars[0])

    def params(self, name: str) -> tuple[Any, Any]:
        return self.eqn.params[name], self.twin.params[name]

    def require_same_params(self, *but: str) -> None:
        """Raises UnprovenError if a parameter, other than some, differs between the traces."""
        for name in {*self.eqn.params, *self.twin.params} - set(but):
            one, other = self.eqn.params.get(name), self.twin.params.get(name)
            if not same_parameter(one, other):
                raise UnprovenError(f"depends on the per-device batch size in its `{name}`")

    def common(self, values: Sequence[Value] | None = None) -> Kind:
        values = self.values if values is None else values
        kind = common_kind(values)
        if kind is None:
            raise self.unproven(values)
        return kind

    def exact(self, values: Sequence[Value] | None = None) -> Kind:
        """Returns the common kind of operands of a function that is not linear."""
        kind = self.common(values)
        if not kind.is_exact:
            raise self.unproven(values)
        return kind

    def unproven(self, values: Sequence[Value] | None = None) -> UnprovenError:
        """Explains why an operation on its operands has no version over the global batch."""
        return UnprovenError(_explanation(self.values if values is None else values))


def shape_of(atom: Any) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


def dtype_of(atom: Any) -> Any:
    return getattr(atom.aval, "dtype", None)


def differing_axis(shapes: Shapes, n: int) -> int | None:
    """Returns the only axis that is n times longer over the global batch, if any is longer."""
    local, global_ = shapes
    axes = [k for k, (a, b) in enumerate(zip(local, global_, strict=True)) if a != b]
    if not axes:
        return None
    if len(axes) > 1 or global_[axes[0]] != n * local[axes[0]]:
        raise UnprovenError(OTHER_SHAPE)
    return axes[0]


def same_parameter(one: Any, other: Any) -> bool:
    """Whether two parameters are equal; jaxprs, if they are the same program."""
    if one is other:
        return True
    if isinstance(one, Jaxpr | ClosedJaxpr) and isinstance(other, Jaxpr | ClosedJaxpr):
        return str(one) == str(other) and not _constants_differ(one, other)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(same_parameter, one, other))
    if callable(one) and callable(other):  # A rule for derivatives, which are traced already.
        return type(one) is type(other)
    try:
        return bool(np.all(one == other))
    except (TypeError, ValueError):
        return False


def _constants_differ(one: Any, other: Any) -> bool:
    values = getattr(one, "consts", ()), getattr(other, "consts", ())
    return len(values[0]) != len(values[1]) or any(
        a is not b and not np.array_equal(a, b) for a, b in zip(*values, strict=True)
    )


def has_collectives(eqn: JaxprEqn, axis_name: Hashable) -> bool:
    """Whether an equation, or one inside of it, names the mapped axis."""
    inner = (each for sub in jaxprs.subjaxprs(eqn.params) for each in jaxprs.equations(sub))
    return any(
        axis_name in jaxprs.axis_names(value, (axis_name,))
        for each in (eqn, *inner)
        for key, value in each.params.items()
        if "ax" in key
    )


def description(value: Value) -> str:
    kind = value.kind
    if kind.relation is Relation.SUM and kind.scale == 1:
        return "a mean over the device's own examples"
    if kind.relation is Relation.SHARD:
        return kind.relation.value + (" scaled by the batch size" if kind.scale else "")
    if kind.relation is Relation.SAME and kind.scale:
        return "a number that depends on the per-device batch size"
    return kind.relation.value


def common_segments(*kinds: Kind) -> int:
    """Returns how the sharded axes of operands that are paired are divided, if equally."""
    segments = {kind.segments for kind in kinds} - {0}
    if len(segments) > 1:
        raise UnprovenError(_OTHER_ORDER)
    return max(segments, default=0)


def _explanation(values: Sequence[Value]) -> str:
    known = [value for value in values if not value.is_zero]
    kinds = {value.kind.relation for value in known}
    local = kinds & {Relation.SUM, Relation.MAX, Relation.MIN}
    worst = next((v for v in known if v.kind.relation in local), None)
    if worst is not None and Relation.SHARD in kinds:
        return f"combines per-example values with {description(worst)}"
    if worst is not None:
        return f"is not linear in {description(worst)}"
    if len({value.kind.axis for value in known if value.kind.relation is Relation.SHARD}) > 1:
        return PAIRS
    if len({v.kind.segments for v in known if v.kind.relation is Relation.SHARD} - {0}) > 1:
        return _OTHER_ORDER
    scaled = next((value for value in known if value.kind.scale), known[0] if known else values[0])
    return f"takes {description(scaled)}"
