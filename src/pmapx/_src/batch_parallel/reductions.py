"""Rules of reductions, cumulative operations, windows, sorting, products and linear algebra."""

from collections.abc import Sequence

import numpy as np

from pmapx._src.batch_parallel.kinds import MAX, MIN, SAME, SUM, Kind, Relation, UnprovenError
from pmapx._src.batch_parallel.steps import PAIRS, Result, Rule, Step, common_segments

_OVER_BATCH = {"reduce_max": MAX, "reduce_or": MAX, "reduce_min": MIN, "reduce_and": MIN}


def reduction(step: Step) -> Result:
    step.require_same_params("out_sharding")
    [kind] = step.kinds
    axes: Sequence[int] = step.eqn.params["axes"]
    is_bitwise = step.name in ("reduce_or", "reduce_and") and step.dtype() != np.bool_
    over_batch = None if is_bitwise else _OVER_BATCH.get(step.name)
    if kind.relation is Relation.FLAT and {kind.axis, kind.axis + 1} <= set(axes):
        kind = SAME.scaled(kind.scale)  # The same elements.
    if step.name == "reduce_sum":
        if kind.relation is Relation.SPLIT and set(range(1 + kind.segments)) <= set(axes):
            return SUM.scaled(kind.scale)
        if kind.relation is Relation.SHARD and kind.axis in axes:
            return SUM.scaled(kind.scale)
        if kind.relation in (Relation.SAME, Relation.SUM):
            return kind
    elif over_batch == kind:
        return kind
    if not kind.is_scaled_value:
        raise step.unproven()
    if kind.relation is Relation.SHARD and kind.axis in axes:
        if over_batch is None or kind.scale:
            raise UnprovenError("depends on which examples a device holds")
        return over_batch
    if step.name in ("argmax", "argmin"):
        kind = kind.scaled(-kind.scale)
    elif kind.scale and step.name not in ("reduce_sum", "reduce_max", "reduce_min"):
        raise step.unproven()
    return kind.along(kind.axis - sum(axis < kind.axis for axis in axes))


def along_one_axis(step: Step) -> Result:
    """Cumulative operations, sorting and the largest elements, along another axis."""
    step.require_same_params()
    rank = len(step.shapes()[0])
    dimension = step.eqn.params.get("dimension", step.eqn.params.get("axis", -1)) % rank
    kind = step.common()
    if kind.relation is Relation.SHARD and kind.axis == dimension:
        raise UnprovenError("depends on the order of the examples of a device")
    return kind if step.name == "cumsum" and kind.is_linear else step.exact()


def window(step: Step) -> Result:
    """A window that takes one example at a time."""
    step.require_same_params()
    kind = step.common()
    if kind.relation is Relation.SHARD and not _is_one_wide(step, kind.axis):
        raise UnprovenError("has a window over several examples")
    return kind if step.name == "reduce_window_sum" and kind.is_linear else step.exact()


def scattered_window(step: Step) -> Result:
    """The derivative of a maximum over windows: linear in the first operand."""
    step.require_same_params()
    source, operand = step.values
    if not operand.kind.is_exact:
        raise step.unproven()
    if source.kind.relation is Relation.SHARD and operand.kind.relation is Relation.SHARD:
        same = source.kind.axis == operand.kind.axis and _is_one_wide(step, source.kind.axis)
        segments = {source.kind.segments, operand.kind.segments} - {0}
        if same and len(segments) <= 1:
            return source.kind.along(source.kind.axis, max(segments, default=0))
    if operand.kind == SAME and source.kind.relation in (Relation.SAME, Relation.SUM):
        return source.kind
    raise step.unproven()


def _is_one_wide(step: Step, axis: int) -> bool:
    params = step.eqn.params
    padding = params.get("padding")
    return (
        params["window_dimensions"][axis] == 1
        and params["window_strides"][axis] == 1
        and (padding is None or tuple(padding[axis]) == (0, 0))
        and all(
            params.get(name) is None or params[name][axis] == 1
            for name in ("base_dilation", "window_dilation")
        )
    )


def on_last_dimensions(count: int) -> Rule:
    """Rules of functions of the last dimensions, for each index of those before them."""

    def rule(step: Step) -> Result:
        step.require_same_params()
        kind = step.exact()
        if kind.relation is Relation.SHARD and kind.axis >= len(step.shapes()[0]) - count:
            raise UnprovenError("combines the examples of a device")
        return kind

    return rule


def fourier(step: Step) -> Result:
    step.require_same_params()
    [kind] = step.kinds
    last = len(step.shapes()[0]) - len(step.eqn.params["fft_lengths"])
    if kind.relation is Relation.SHARD and kind.axis >= last:
        raise UnprovenError("combines the examples of a device")
    if not kind.is_linear:
        raise step.unproven()
    return kind


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
            raise UnprovenError(PAIRS)
        segments = common_segments(left, right)
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
        raise step.unproven()
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
            raise UnprovenError(PAIRS)
        common_segments(left, right)
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
        if factor.relation is Relation.SAME and kind.is_linear:
            return kind, factor
    raise step.unproven()


_REDUCTIONS = ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"]
_MATRICES = ["cholesky", "lu", "qr", "householder_product", "eigh", "eig", "svd", "schur"]

RULES: dict[str, Rule] = {
    **dict.fromkeys([*_REDUCTIONS, "reduce_xor", "argmax", "argmin"], reduction),
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"], along_one_axis),
    **dict.fromkeys(["sort", "top_k"], along_one_axis),
    **dict.fromkeys(["reduce_window_sum", "reduce_window_max", "reduce_window_min"], window),
    "select_and_scatter_add": scattered_window,
    **dict.fromkeys([*_MATRICES, "triangular_solve", "tridiagonal_solve"], on_last_dimensions(2)),
    "fft": fourier,
    "dot_general": dot_general,
    "conv_general_dilated": convolution,
}
ZERO_STAYS = {
    "reduce_sum", "cumsum", "reduce_window_sum", "dot_general", "conv_general_dilated"
}  # fmt: skip
