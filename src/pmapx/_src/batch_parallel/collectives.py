"""Rules of collectives over the mapped axis: what each means over the global batch.

A rule is applied to one operand at a time.
"""

from pmapx._src.batch_parallel.kinds import (
    MAX,
    MIN,
    SAME,
    Kind,
    Reason,
    Relation,
    UnprovenError,
    Value,
    shard,
    unknown,
)
from pmapx._src.batch_parallel.steps import Result, Rule, Step, description
from pmapx._src.replication import jaxprs, source_locations

_BY_DEVICE = "depends on which device holds what"


def reduction(step: Step) -> Result:
    """psum: of a sum over the device's examples it is the sum, of a mean n times the mean."""
    _require_entire_axis(step)
    [value] = step.values
    if value.kind.relation is Relation.SHARD:
        raise UnprovenError("adds examples of different devices that have the same position")
    if value.kind.relation not in (Relation.SUM, Relation.SAME):
        raise UnprovenError(f"adds {description(value)} of each device")
    step.power = value.kind.scale + (value.kind.relation is Relation.SAME)
    return SAME


def extremum(step: Step) -> Result:
    _require_entire_axis(step)
    [value], wanted = step.values, MAX if step.name == "pmax" else MIN
    if value.kind != wanted and value.kind.relation is not Relation.SAME:
        raise UnprovenError(f"compares {description(value)} of each device")
    return SAME if value.kind == wanted else value.kind


def all_gather(step: Step) -> Result:
    _require_entire_axis(step)
    [value], axis = step.values, step.eqn.params["all_gather_dimension"]
    kind = value.kind
    if kind.relation is not Relation.SHARD or kind.axis != axis or kind.segments > 1:
        raise UnprovenError(f"gathers {description(value)} by device")
    step.power = kind.scale
    return SAME if step.eqn.params["tiled"] else Kind(Relation.FLAT, 0, axis)


def reduce_scatter(step: Step) -> Result:
    """The derivative of all_gather: each device has its part of a sum."""
    _require_entire_axis(step)
    axis, is_tiled = step.eqn.params["scatter_dimension"], step.eqn.params["tiled"]
    [value], kind = step.values, step.kinds[0]
    summed = Relation.SUM if is_tiled else Relation.FLAT_SUM
    same = Relation.SAME if is_tiled else Relation.FLAT
    if kind.relation not in (summed, same) or (not is_tiled and kind.axis != axis):
        raise UnprovenError(f"scatters {description(value)} by device")
    return shard(axis, kind.scale + (kind.relation is same))


def axis_index(step: Step) -> Result:
    """The device's index: unknown, except for a position in the batch that is computed from it."""
    why = "depends on the index of the device"
    reason = Reason("`axis_index`", source_locations.line_of(step.eqn), why)
    return Value(unknown(reason), device_stride=1)


def between_devices(step: Step) -> Result:
    raise UnprovenError(_BY_DEVICE)


def _require_entire_axis(step: Step) -> None:
    params = step.eqn.params
    axes = params.get("axes", params.get("axis_name"))
    names = jaxprs.axis_names(axes, (step.axis_name,))
    count = len(axes) if isinstance(axes, tuple) and axes != step.axis_name else 1
    if names != (step.axis_name,) or count != 1:
        raise UnprovenError("is over more than the mapped axis")
    if params.get("axis_index_groups") is not None:
        raise UnprovenError("is over groups of devices")


RULES: dict[str, Rule] = {
    **dict.fromkeys(["psum", "psum2", "psum_invariant"], reduction),
    **dict.fromkeys(["pmax", "pmin"], extremum),
    **dict.fromkeys(["all_gather", "all_gather_invariant"], all_gather),
    "reduce_scatter": reduce_scatter,
    "axis_index": axis_index,
    **dict.fromkeys(
        ["ppermute", "pshuffle", "all_to_all", "ragged_all_to_all", "pgather", "pbroadcast"],
        between_devices,
    ),
}
