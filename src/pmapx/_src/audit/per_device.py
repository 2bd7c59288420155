"""The function that each device runs, of a pmap or of a jitted ``shard_map``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr

from pmapx._src.map.program_builder import ProgramBuilder
from pmapx._src.mesh.partition_specs import entry_axes
from pmapx._src.replication import whole_program
from pmapx._src.trees.signature import Signature


@dataclasses.dataclass(frozen=True)
class PerDevice:
    """A body, and how it takes the leaves of its arguments.

    Attributes:
      body: takes the dynamic arguments of one device, the last one a dict of keyword arguments.
      axis: the mapped axis, as collectives in the body name it.
      dimensions: the dimension of each leaf that is mapped or sharded; None: it is replicated.
      is_stacked: whether that dimension has one entry for each device, and is gone in the body.
    """

    body: Callable[..., Any]
    axis: Any
    dimensions: Sequence[int | None]
    is_stacked: bool


def of_pmap(programs: ProgramBuilder, signature: Signature) -> PerDevice | str:
    """Returns the body of a pmapped function, or why there is none."""
    levels = programs.resolve(signature).levels
    if len(levels) != 1 or programs.options.oversubscribe:
        return "it is a pmap of a pmap, or runs several indices on each device"
    call = programs.body(signature).call
    axis = levels[0].mesh_axis if levels[0].name is None else levels[0].name
    return PerDevice(
        lambda *args: call(*args[:-1], **args[-1]), axis, levels[0].in_axes, is_stacked=True
    )


def of_shard_map(f: Any, jaxpr: ClosedJaxpr) -> PerDevice | str | None:
    """Returns the body of ``jax.jit(jax.shard_map(body, ...))``; why not; None without one."""
    if not any(True for _ in whole_program.shard_maps(jaxpr.jaxpr)):
        return None
    top = jaxpr.jaxpr
    body = getattr(getattr(f, "__wrapped__", None), "__wrapped__", None)
    eqn = top.eqns[0]
    is_all = len(top.eqns) == 1 and eqn.primitive.name == "shard_map"
    if body is None or not is_all or list(eqn.invars) != list(top.invars):
        return (
            "it has a shard_map in it, whose body sees only its shards: in_specs and the body would"
            " have to change. pmapx migrate --to jit writes a step without one"
        )
    dimensions = []
    for spec in eqn.params["in_specs"]:
        sharded = [(k, axis) for k, entry in enumerate(spec) for axis in entry_axes(entry)]
        if len(sharded) > 1:
            return f"an in_spec shards over several axes: {spec}"
        dimensions.append(sharded[0][0] if sharded else None)
    (axis, *_) = eqn.params["mesh"].axis_names
    return PerDevice(lambda *args: body(*args[:-1], **args[-1]), axis, dimensions, is_stacked=False)
