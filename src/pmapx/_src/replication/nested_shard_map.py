"""The sharding of results of nested ``shard_map``, as of nested pmaps.

To the outer body the result of the inner one is unsharded, and outside of both it is sharded over
the axes of both. Whether its shards along an inner axis are equal is known where the inner body
ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import PartitionSpec

from pmapx._src.mesh.partition_specs import entry_axes
from pmapx._src.replication import jaxprs
from pmapx._src.replication.shard_map_body import Origins


class InnerSharding(NamedTuple):
    dimensions: Mapping[int, tuple[Any, ...]]  # The mesh axes that shard each.
    manual: tuple[Any, ...]
    origins: Origins  # The axes along which the shards differ.


def over_both_meshes(
    eqn: JaxprEqn, index: int, origins: Origins, inner: Mapping[Var, Origins]
) -> tuple[PartitionSpec, tuple[Any, ...], Origins]:
    """Returns the spec, axes and origins of result ``index`` of a ``shard_map``.

    Includes those of each ``shard_map`` inside: ``inner`` has the origins of their results.
    """
    spec, manual = eqn.params["out_specs"][index], jaxprs.manual_axes(eqn)
    body = jaxprs.opened(eqn.params["jaxpr"])
    found = _inner_sharding(body, body.outvars[index], inner)
    if found is None:
        return spec, manual, origins
    rank = max(len(spec), *(dimension + 1 for dimension in found.dimensions), 0)
    entries = [
        (*entry_axes(spec[d] if d < len(spec) else None), *found.dimensions.get(d, ()))
        for d in range(rank)
    ]
    both = PartitionSpec(
        *(axes if len(axes) > 1 else axes[0] if axes else None for axes in entries)
    )
    return both, (*manual, *found.manual), {**origins, **found.origins}


def _inner_sharding(body: Jaxpr, atom: Any, inner: Mapping[Var, Origins]) -> InnerSharding | None:
    """Follows an output back to the inner ``shard_map`` that made it, through added dimensions."""
    makers = {var: eqn for eqn in body.eqns for var in eqn.outvars}
    dimensions: Sequence[int] = range(len(getattr(atom.aval, "shape", ())))
    while not isinstance(atom, Literal) and atom in makers:
        eqn = makers[atom]
        if eqn.primitive.name == "shard_map":
            return _of_inner(eqn, atom, dimensions, inner)
        if eqn.primitive.name != "broadcast_in_dim":
            return None
        to = eqn.params["broadcast_dimensions"]
        operand = eqn.invars[0]
        shape, made = getattr(operand.aval, "shape", ()), getattr(atom.aval, "shape", ())
        if any(shape[k] != made[d] for k, d in enumerate(to)):
            return None  # Values are repeated.
        dimensions, atom = [dimensions[d] for d in to], operand
    return None


def _of_inner(
    eqn: JaxprEqn, var: Var, dimensions: Sequence[int], inner: Mapping[Var, Origins]
) -> InnerSharding | None:
    if var not in inner:
        return None
    index = list(eqn.outvars).index(var)
    manual = jaxprs.manual_axes(eqn)
    own = {axis: since for axis, since in inner[var].items() if axis in manual}
    spec, names, origins = over_both_meshes(eqn, index, own, inner)
    sharded = {
        dimensions[k]: entry_axes(entry) for k, entry in enumerate(spec) if entry is not None
    }
    return InnerSharding(sharded, names, origins)
