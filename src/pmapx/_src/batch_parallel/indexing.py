"""Rules of gather, scatter and dynamic slices."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from pmapx._src.batch_parallel.kinds import SAME, SUM, Kind, Relation, UnprovenError, Value, shard
from pmapx._src.batch_parallel.steps import PAIRS, Result, Rule, Step, common_segments, description

_BY_POSITION = "indexes the examples of a device by position"
_PAIRS = "indexes one example by another on its device"


def gather(step: Step) -> Result:
    step.require_same_params("slice_sizes")
    operand, indices = step.values
    numbers = step.eqn.params["dimension_numbers"]
    sizes, global_sizes = step.params("slice_sizes")
    rank = len(step.out_shapes()[0])
    batch_dims = [d for d in range(rank) if d not in numbers.offset_dims]
    offset_of = [
        d for d in range(len(sizes))
        if d not in numbers.collapsed_slice_dims and d not in numbers.operand_batching_dims
    ]  # fmt: skip
    kind = operand.kind
    where = _indexed_by_position(step, indices)
    if where is not None:
        # x[arange(b), labels]: each example takes from itself.
        axis, columns = where
        indexed = [numbers.start_index_map[k] for k in columns]
        if (
            kind.relation is not Relation.SHARD
            or kind.segments > 1
            or indexed != [kind.axis]
            or kind.axis not in numbers.collapsed_slice_dims
            or tuple(sizes) != tuple(global_sizes)
        ):
            raise UnprovenError(_BY_POSITION)
        return shard(batch_dims[axis], kind.scale)
    if not indices.kind.is_exact:
        raise UnprovenError(f"takes indices from {description(indices)}")
    if kind.scale or kind.relation is Relation.SUM:
        _require_neutral_fill(step)
    if kind.relation is not Relation.SHARD:
        if tuple(sizes) != tuple(global_sizes) or not kind.is_pointwise:
            raise UnprovenError(_BY_POSITION)
        if indices.kind.relation is Relation.SAME:
            return kind
        if kind.relation is not Relation.SAME:
            raise step.unproven()
        # An embedding: each example has its own indices into one table.
        _require_in_batch_dims(step, indices)
        return indices.kind.along(batch_dims[indices.kind.axis]).scaled(kind.scale)
    if kind.axis in numbers.operand_batching_dims:
        k = list(numbers.operand_batching_dims).index(kind.axis)
        at = numbers.start_indices_batching_dims[k]
        if not _is_sharded(indices, at) or tuple(sizes) != tuple(global_sizes):
            raise UnprovenError(_PAIRS)
        segments = common_segments(operand.kind, indices.kind)
        return kind.along(batch_dims[indices.kind.axis], segments)
    (local, global_) = step.shapes()
    is_complete = (
        sizes[kind.axis] == local[kind.axis] and global_sizes[kind.axis] == global_[kind.axis]
    )
    others = [[s for d, s in enumerate(each) if d != kind.axis] for each in (sizes, global_sizes)]
    if not is_complete or others[0] != others[1] or kind.axis not in offset_of:
        raise UnprovenError(_BY_POSITION)
    if indices.kind.relation is not Relation.SAME:
        raise UnprovenError(PAIRS)
    return kind.along(numbers.offset_dims[offset_of.index(kind.axis)])


def scatter(step: Step) -> Result:
    """Of scatter_add also the sum over the batch: the derivative of an embedding."""
    step.require_same_params()
    operand, indices, updates = step.values
    numbers = step.eqn.params["dimension_numbers"]
    is_sum = step.name == "scatter-add"
    is_linear = is_sum or step.name == "scatter"
    update_rank = len(step.shapes(2)[0])
    batch_dims = [d for d in range(update_rank) if d not in numbers.update_window_dims]
    window_of = [
        d for d in range(len(step.shapes()[0]))
        if d not in numbers.inserted_window_dims and d not in numbers.operand_batching_dims
    ]  # fmt: skip
    where = _indexed_by_position(step, indices)
    if where is not None:
        return _scattered_by_position(step, operand, updates, *where, batch_dims)
    if not indices.kind.is_exact:
        raise UnprovenError(f"takes indices from {description(indices)}")
    if indices.kind.relation is Relation.SAME and not any(
        v.kind.relation is Relation.SHARD for v in (operand, updates)
    ):
        kind = step.common([operand, updates])
        if kind.relation is Relation.SUM and is_linear:
            return kind
        return step.exact([operand, updates])
    scale = _common_scale(step, operand, updates)
    if scale and not is_linear:
        raise step.unproven()
    for k, dim in enumerate(numbers.operand_batching_dims):
        at = numbers.scatter_indices_batching_dims[k]
        if operand.kind == shard(dim, operand.kind.scale, operand.kind.segments):
            if not _is_sharded(indices, at) or not _is_sharded(updates, batch_dims[at]):
                raise UnprovenError(_PAIRS)
            return shard(dim, scale, common_segments(*step.kinds))
    if operand.kind.relation is Relation.SHARD:
        if operand.kind.axis not in window_of:
            raise UnprovenError(_BY_POSITION)
        k = window_of.index(operand.kind.axis)
        if (
            indices.kind.relation is not Relation.SAME
            or not _is_sharded(updates, numbers.update_window_dims[k])
            or any(
                update[numbers.update_window_dims[k]] != written[operand.kind.axis]
                for update, written in zip(step.shapes(2), step.shapes(0), strict=True)
            )
        ):
            raise UnprovenError(_BY_POSITION)
        return shard(operand.kind.axis, scale, common_segments(operand.kind, updates.kind))
    if not is_sum or indices.kind.relation is not Relation.SHARD:
        raise UnprovenError("writes examples of a device into one array")
    _require_in_batch_dims(step, indices)
    if not _is_sharded(updates, batch_dims[indices.kind.axis]):
        raise step.unproven()
    common_segments(indices.kind, updates.kind)
    return step.common([operand, Value(SUM.scaled(updates.kind.scale), is_zero=updates.is_zero)])


def _scattered_by_position(
    step: Step,
    operand: Value,
    updates: Value,
    axis: int,
    columns: list[int],
    batch_dims: Sequence[int],
) -> Kind:
    numbers = step.eqn.params["dimension_numbers"]
    to = operand.kind.axis
    fits = (
        operand.kind.relation is Relation.SHARD
        and operand.kind.segments <= 1
        and updates.kind.segments <= 1
        and _is_sharded(updates, batch_dims[axis])
        and to in numbers.scatter_dims_to_operand_dims
        and columns == [numbers.scatter_dims_to_operand_dims.index(to)]
        and to in numbers.inserted_window_dims
    )
    if not fits or step.name not in ("scatter-add", "scatter"):
        raise UnprovenError(_BY_POSITION)
    return shard(to, _common_scale(step, operand, updates))


def dynamic_slice(step: Step) -> Result:
    operand, *starts = step.values
    _require_replicated(starts)
    kind = operand.kind
    if kind.relation is Relation.SHARD:
        if step.out_shapes()[0][kind.axis] != step.shapes()[0][kind.axis]:
            raise UnprovenError(_BY_POSITION)
        return kind
    step.require_same_params()
    if not kind.is_pointwise:
        raise step.unproven()
    return kind


def dynamic_update_slice(step: Step) -> Result:
    operand, update, *starts = step.values
    _require_replicated(starts)
    kind = step.common([operand, update])
    if kind.relation is not Relation.SHARD and not kind.is_pointwise:
        raise step.unproven()
    if kind.relation is Relation.SHARD and (
        step.shapes(0)[0][kind.axis] != step.shapes(1)[0][kind.axis]
        or step.shapes(0)[1][kind.axis] != step.shapes(1)[1][kind.axis]
    ):
        raise UnprovenError(_BY_POSITION)
    return kind


def _indexed_by_position(step: Step, indices: Value) -> tuple[int, list[int]] | None:
    """Returns the sharded axis of indices some of whose columns count the examples, and which."""
    if not indices.columns:
        return None
    counting, axes = [], set()
    for k, value in enumerate(indices.columns):
        if not value.is_unknown:
            if value.kind.is_exact and value.kind.relation is Relation.SHARD:
                axes.add(value.kind.axis)
            elif value.kind != SAME:
                raise UnprovenError(_BY_POSITION)
            if value.kind.segments > 1:
                raise UnprovenError(_BY_POSITION)
            continue
        assert value.pair is not None
        (local, global_) = (np.asarray(x) for x in value.pair)
        counted = [
            axis
            for axis in range(local.ndim - 1)
            if local.shape[axis] > 0
            and all(_counts(x, axis) for x in (local, global_))
            and global_.shape[axis] == step.n * local.shape[axis]
        ]
        if len(counted) != 1:
            raise UnprovenError(_BY_POSITION)
        counting.append(k)
        axes.add(counted[0])
    if len(axes) != 1 or len(counting) != 1:
        raise UnprovenError(_BY_POSITION)
    return axes.pop(), counting


def _counts(indices: np.ndarray, axis: int) -> bool:  # type: ignore[type-arg]
    shape = [1] * indices.ndim
    shape[axis] = indices.shape[axis]
    expected = np.arange(indices.shape[axis]).reshape(shape)
    return bool(np.array_equal(indices, np.broadcast_to(expected, indices.shape)))


def _require_neutral_fill(step: Step) -> None:
    """Values read out of bounds must scale and add up like all others: zero or NaN."""
    fill, is_float = step.eqn.params.get("fill_value"), jnp.issubdtype(step.dtype(), jnp.inexact)
    is_neutral = is_float if fill is None else fill == 0 or fill != fill
    if "FILL" in str(step.eqn.params["mode"]) and not is_neutral:
        raise UnprovenError("fills out-of-bounds values with a constant")


def _require_replicated(starts: Sequence[Value]) -> None:
    for start in starts:
        if start.kind != SAME:
            raise UnprovenError(f"starts at {description(start)}")


def _require_in_batch_dims(step: Step, indices: Value) -> None:
    if indices.kind.axis == len(step.shapes(1)[0]) - 1:
        raise UnprovenError("uses the batch as the coordinates of an index")


def _is_sharded(value: Value, axis: int) -> bool:
    return value.kind.relation is Relation.SHARD and value.kind.axis == axis


def _common_scale(step: Step, *values: Value) -> int:
    scales = {value.kind.scale for value in values if not value.is_zero}
    if len(scales) > 1:
        raise step.unproven(values)
    return scales.pop() if scales else 0


_SCATTERS = ["scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub"]
RULES: dict[str, Rule] = {
    "gather": gather,
    **dict.fromkeys(_SCATTERS, scatter),
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
}
ZERO_STAYS = {"dynamic_slice"}
