"""Rules of matrix products and convolutions: linear in each of two operands."""

from __future__ import annotations

from pmapx._src.batch_parallel.kinds import SUM, Kind, Relation, UnprovenError
from pmapx._src.batch_parallel.steps import Result, Rule, Step, explanation


def dot_general(step: Step) -> Result:
    step.require_same_params("out_sharding")
    (contracted, batched) = step.eqn.params["dimension_numbers"]
    left, right = step.kinds
    if left.relation is Relation.SHARD and right.relation is Relation.SHARD:
        at = [
            [tuple(dims[k]).index(kind.axis) if kind.axis in dims[k] else None
             for dims in (contracted, batched)]
            for k, kind in enumerate((left, right))
        ]  # fmt: skip
        if at[0] != at[1] or at[0] == [None, None]:
            raise UnprovenError("pairs each example with the others on its device")
        segments = _segments(left, right)
        scale = left.scale + right.scale
        if at[0][0] is not None:
            return SUM.scaled(scale)
        return Kind(Relation.SHARD, scale, at[0][1] or 0, segments)
    on_left = left.relation is Relation.SHARD
    kind, factor = _with_factor(step, left, right)
    if kind.relation is not Relation.SHARD:
        return kind.scaled(factor.scale)
    mine = 0 if on_left else 1
    axis, rank = kind.axis, len(step.shapes(mine)[0])
    if axis in batched[mine]:
        return kind.scaled(factor.scale).along(tuple(batched[mine]).index(axis))
    if axis in contracted[mine]:
        raise UnprovenError(explanation(step.values))
    free = [k for k in range(rank) if k not in contracted[mine] and k not in batched[mine]]
    position = len(batched[mine]) + free.index(axis)
    if not on_left:
        position += len(step.shapes(0)[0]) - len(contracted[0]) - len(batched[0])
    return kind.scaled(factor.scale).along(position)


def convolution(step: Step) -> Result:
    step.require_same_params("lhs_shape", "rhs_shape")
    left, right = step.kinds
    numbers, params = step.eqn.params["dimension_numbers"], step.eqn.params
    if left.relation is Relation.SHARD and right.relation is Relation.SHARD:
        # The derivative by the kernel: the batch is the contracted feature dimension.
        is_contracted = left.axis == numbers.lhs_spec[1] and right.axis == numbers.rhs_spec[1]
        if not is_contracted or params["feature_group_count"] != 1:
            raise UnprovenError("pairs each example with the others on its device")
        _segments(left, right)
        return SUM.scaled(left.scale + right.scale)
    on_left = left.relation is Relation.SHARD
    kind, factor = _with_factor(step, left, right)
    if kind.relation is not Relation.SHARD:
        return kind.scaled(factor.scale)
    if not on_left or kind.axis != numbers.lhs_spec[0] or params["batch_group_count"] != 1:
        raise UnprovenError("convolves along the batch")
    return kind.scaled(factor.scale).along(numbers.out_spec[0])


def _with_factor(step: Step, left: Kind, right: Kind) -> tuple[Kind, Kind]:
    """Returns a kind in which the operation is linear, and that of a replicated operand."""
    for kind, factor in ((left, right), (right, left)):
        if factor.relation is Relation.SAME and kind.relation in (
            Relation.SAME,
            Relation.SHARD,
            Relation.SUM,
        ):
            return kind, factor
    raise UnprovenError(explanation(step.values))


def _segments(left: Kind, right: Kind) -> int:
    segments = {left.segments, right.segments} - {0}
    if len(segments) > 1:
        raise UnprovenError("pairs examples that are in a different order over the global batch")
    return max(segments, default=0)


RULES: dict[str, Rule] = {"dot_general": dot_general, "conv_general_dilated": convolution}
ZERO_STAYS = set(RULES)
