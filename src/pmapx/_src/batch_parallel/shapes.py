"""Rules of operations that rearrange elements."""

import math
from collections.abc import Callable
from typing import Any

from jax.extend.core import JaxprEqn

from pmapx._src.batch_parallel.kinds import SAME, Kind, Relation, UnprovenError, Value, shard
from pmapx._src.batch_parallel.steps import PAIRS, Result, Rule, Step, differing_axis

_ACROSS = "selects examples by their position on a device"


def reshape(step: Step) -> Result:
    """The elements stay in order; a sharded axis may be merged with others or divided."""
    [kind] = step.kinds
    (local, global_), (to_local, to_global) = step.shapes(), step.out_shapes()
    if step.eqn.params.get("dimensions") is not None:
        raise UnprovenError("permutes dimensions")
    if kind.relation in _FLAT and to_local == to_global:
        return Kind(_FLAT[kind.relation], kind.scale)
    if kind.is_pointwise and to_local == to_global:
        return kind
    if kind.relation in (Relation.SAME, Relation.SUM):
        flat = _gathered_axis(to_local, to_global, step.n)
        if flat is not None:
            relation = {v: k for k, v in _FLAT.items()}[kind.relation]
            return Kind(relation, kind.scale, flat)
    to = differing_axis((to_local, to_global), step.n)
    if to is not None and kind.relation is Relation.SAME and local == global_:
        raise UnprovenError("has a shape that depends on the per-device batch size")
    if to is None or kind.relation is not Relation.SHARD:
        raise UnprovenError(_ACROSS)
    before, before_to = math.prod(local[: kind.axis]), math.prod(to_local[:to])
    if to_local[to] == local[kind.axis] and before == before_to:
        return kind.along(to)
    ahead = before * max(kind.segments, 1)
    segments, rest = divmod(ahead, before_to)
    if rest == 0 and segments and to_local[to] % segments == 0:
        return kind.along(to, segments)
    if ahead == 1 and to == 1:
        return Kind(Relation.SPLIT, kind.scale, 0)
    raise UnprovenError(_ACROSS)


_FLAT = {Relation.FLAT: Relation.SAME, Relation.FLAT_SUM: Relation.SUM}


def _gathered_axis(local: tuple[int, ...], global_: tuple[int, ...], n: int) -> int | None:
    """Returns k where dimensions k and k + 1 are (n, b) on a device and (1, n * b) in all."""
    for k in range(len(local) - 1 if len(local) == len(global_) else 0):
        is_gathered = (local[k], global_[k]) == (n, 1) and global_[k + 1] == n * local[k + 1]
        if is_gathered and (local[:k], local[k + 2 :]) == (global_[:k], global_[k + 2 :]):
            return k
    return None


def transpose(step: Step) -> Result:
    step.require_same_params()
    return _moved(step.kinds[0], tuple(step.eqn.params["permutation"]).index)


def broadcast(step: Step) -> Result:
    step.require_same_params("shape", "sharding")
    kind, axis = step.kinds[0], differing_axis(step.out_shapes(), step.n)
    dimensions = tuple(step.eqn.params["broadcast_dimensions"])
    if len(step.values) > 1:
        raise UnprovenError("has a dynamic shape")
    if kind.relation is Relation.SHARD:
        to = int(dimensions[kind.axis])
        if axis != to or step.out_shapes()[0][to] != step.shapes()[0][kind.axis]:
            raise UnprovenError(PAIRS)
        return kind.along(to)
    if axis is None:
        return _moved(kind)
    if kind.relation is not Relation.SAME:
        raise step.unproven([Value(kind), Value(shard(axis))])
    return shard(axis, kind.scale, 0)


def squeeze(step: Step) -> Result:
    step.require_same_params()
    dropped = {d % len(step.shapes()[0]) for d in step.eqn.params["dimensions"]}
    return _moved(step.kinds[0], lambda axis: axis - sum(d < axis for d in dropped))


def reversal(step: Step) -> Result:
    step.require_same_params()
    [kind] = step.kinds
    is_sharded = kind.relation is Relation.SHARD
    if is_sharded and kind.axis in step.eqn.params["dimensions"] and kind.segments:
        raise UnprovenError(_ACROSS)
    return _moved(kind)


def slicing(step: Step) -> Result:
    [kind] = step.kinds
    if kind.relation is not Relation.SHARD:
        step.require_same_params()
        return _moved(kind)
    (local, global_), axis = step.shapes(), kind.axis
    (first, last, stride), others = _bounds(step.eqn, axis)
    (global_first, global_last, _), global_others = _bounds(step.twin, axis)
    if others != global_others:
        raise UnprovenError("depends on the per-device batch size in its bounds")
    if stride != 1:
        raise UnprovenError(_ACROSS)
    if (first, last) == (0, local[axis]) and (global_first, global_last) == (0, global_[axis]):
        return kind
    # A run of segments, such as one half of what was concatenated along the batch.
    part = local[axis] // max(kind.segments, 1)
    is_aligned = part and not (first % part or last % part)
    if not is_aligned or (global_first, global_last) != (first * step.n, last * step.n):
        raise UnprovenError(_ACROSS)
    return kind.along(axis, (last - first) // part if kind.segments else 0)


def _bounds(eqn: JaxprEqn, axis: int) -> tuple[tuple[int, int, int], list[Any]]:
    """Returns start, limit and stride of a slice along an axis, and along the others."""
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    every = list(zip(starts, limits, strides, strict=True))
    return every[axis], every[:axis] + every[axis + 1 :]


def splitting(step: Step) -> Result:
    [kind] = step.kinds
    if kind.relation is not Relation.SHARD:
        step.require_same_params()
        return _moved(kind)
    axis = step.eqn.params["axis"]
    if axis != kind.axis:
        step.require_same_params()
        return kind
    part = step.shapes()[0][axis] // max(kind.segments, 1)
    sizes, global_sizes = step.params("sizes")
    if any(s % part or w != s * step.n for s, w in zip(sizes, global_sizes, strict=True)):
        raise UnprovenError(_ACROSS)
    return [kind.along(axis, size // part if kind.segments else 0) for size in sizes]


def concatenation(step: Step) -> Result:
    step.require_same_params()
    dimension = step.eqn.params["dimension"]
    kind = step.common()
    if kind.relation is not Relation.SHARD or kind.axis != dimension:
        return _moved(kind)
    lengths = {
        step.shapes(k)[0][dimension] // max(value.kind.segments, 1)
        for k, value in enumerate(step.values)
    }
    if len(lengths) != 1 or any(v.kind.relation is not Relation.SHARD for v in step.values):
        raise UnprovenError("concatenates batches of different sizes")
    return kind.along(dimension, sum(max(value.kind.segments, 1) for value in step.values))


def stacking(step: Step) -> Result:
    step.require_same_params()
    new = step.eqn.params["axis"]
    return _moved(step.common(), lambda axis: axis + (new <= axis))


def unstacking(step: Step) -> Result:
    step.require_same_params()
    [kind], gone = step.kinds, step.eqn.params["axis"]
    if kind.relation is Relation.SHARD and kind.axis == gone:
        raise UnprovenError(_ACROSS)
    return _moved(kind, lambda axis: axis - (gone < axis))


def columns(step: Step) -> Result | None:
    """Indices of several dimensions, the first of which may be the position in the batch."""
    dimension = step.eqn.params["dimension"]
    if dimension != len(step.out_shapes()[0]) - 1 or any(
        step.shapes(k)[0][dimension] != 1 for k in range(len(step.values))
    ):
        return None
    unknown = [value for value in step.values if value.is_unknown]
    if any(value.pair is None for value in unknown):
        return None
    return Value(unknown[0].kind, columns=tuple(step.values))


def padding(step: Step) -> Result:
    step.require_same_params()
    operand, fill = step.values
    kind = step.common()
    if kind.relation is Relation.SHARD:
        if any(step.eqn.params["padding_config"][kind.axis]):
            raise UnprovenError("pads the batch of each device")
        if operand.kind.relation is not Relation.SHARD or fill.kind.relation is Relation.SHARD:
            raise UnprovenError(_ACROSS)
    return _moved(kind)


def tile(step: Step) -> Result:
    [kind] = step.kinds
    axis = differing_axis(step.out_shapes(), step.n) if kind.relation is Relation.SAME else None
    if axis is not None:
        # A replicated value for each example, as a ViT's class token.
        (local, global_), (reps, global_reps) = step.shapes(), step.params("reps")
        others = [(*r[:axis], *r[axis + 1 :]) for r in (reps, global_reps)]
        if local != global_ or others[0] != others[1]:
            raise UnprovenError("depends on the per-device batch size in its `reps`")
        return shard(axis, kind.scale, int(local[axis] != 1))
    step.require_same_params()
    if kind.relation is Relation.SHARD and step.eqn.params["reps"][kind.axis] != 1:
        raise UnprovenError("repeats the batch of each device")
    return _moved(kind)


def iota(step: Step) -> Result:
    axis = differing_axis(step.out_shapes(), step.n)
    step.require_same_params("shape", "sharding")
    if axis is None:
        return SAME
    if axis == step.eqn.params["dimension"]:
        raise UnprovenError("counts the examples of a device")
    return shard(axis, 0, 0)


def empty(step: Step) -> Result:
    """What the derivative of a branch leaves for the other one, which does not read it."""
    axis = differing_axis(step.out_shapes(), step.n)
    return Value(SAME if axis is None else shard(axis, 0, 0), is_zero=True)


def bitcast(step: Step) -> Result:
    step.require_same_params()
    kind = step.exact()
    if kind.axis >= min(len(step.shapes()[0]), len(step.out_shapes()[0])):
        raise UnprovenError(_ACROSS)
    return kind


def _moved(kind: Kind, to: Callable[[int], int] = lambda axis: axis) -> Kind:
    """Returns the kind of a result whose sharded axis, if it has one, is elsewhere."""
    if kind.relation is Relation.SHARD:
        return kind.along(to(kind.axis))
    if not kind.is_pointwise:
        raise UnprovenError(_ACROSS)
    return kind


RULES: dict[str, Rule] = {
    "reshape": reshape,
    "transpose": transpose,
    "broadcast_in_dim": broadcast,
    "squeeze": squeeze,
    "rev": reversal,
    "slice": slicing,
    "split": splitting,
    "concatenate": concatenation,
    "stack": stacking,
    "unstack": unstacking,
    "pad": padding,
    "tile": tile,
    "iota": iota,
    **dict.fromkeys(["empty", "empty2"], empty),
    "bitcast_convert_type": bitcast,
}
ZERO_STAYS = set(RULES) - {"iota", "empty", "empty2", "bitcast_convert_type"}
