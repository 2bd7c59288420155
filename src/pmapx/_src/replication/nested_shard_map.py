"""How the results of a ``shard_map`` lie that come out of another inside of it, as nested pmaps do.

To the outer body the result of the inner one is whole, and to the world outside it is split by the
axes of both. Whether its rows along an inner axis are equal is known where the inner body ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import PartitionSpec

from pmapx._src.replication import jaxprs
from pmapx._src.replication.shard_map_body import Origins


class Parts(NamedTuple):
    """How a value is split, and along which of the axes that split it its parts differ."""

    splits: Mapping[int, tuple[Any, ...]]
    manual: tuple[Any, ...]
    origins: Origins


def entry_axes(entry: Any) -> tuple[Any, ...]:
    """Returns the mesh axes that one entry of a spec names."""
    if entry is None or not isinstance(entry, str | tuple):
        return ()  # Unconstrained.
    return entry if isinstance(entry, tuple) else (entry,)


def split_by_both(
    eqn: JaxprEqn, index: int, origins: Origins, inner: Mapping[Var, Origins]
) -> tuple[PartitionSpec, tuple[Any, ...], Origins]:
    """Returns the spec, the axes and what varies of a result, those of inner maps among them.

    Args:
      eqn: a ``shard_map``.
      index: which of its results.
      origins: the axes of ``eqn`` along which it varies.
      inner: what is known of the results of each ``shard_map`` inside, before they are joined.
    """
    spec, manual = eqn.params["out_specs"][index], jaxprs.manual_axes(eqn)
    body = jaxprs.opened(eqn.params["jaxpr"])
    found = _parts(body, body.outvars[index], inner)
    if found is None:
        return spec, manual, origins
    rank = max(len(spec), *(dimension + 1 for dimension in found.splits), 0)
    entries = [
        (*entry_axes(spec[d] if d < len(spec) else None), *found.splits.get(d, ()))
        for d in range(rank)
    ]
    both = PartitionSpec(
        *(axes if len(axes) > 1 else axes[0] if axes else None for axes in entries)
    )
    return both, (*manual, *found.manual), {**origins, **found.origins}


def _parts(body: Jaxpr, atom: Any, inner: Mapping[Var, Origins]) -> Parts | None:
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
            return None  # Rows are repeated.
        dimensions, atom = [dimensions[d] for d in to], operand
    return None


def _of_inner(
    eqn: JaxprEqn, var: Var, dimensions: Sequence[int], inner: Mapping[Var, Origins]
) -> Parts | None:
    if var not in inner:
        return None
    index = list(eqn.outvars).index(var)
    manual = jaxprs.manual_axes(eqn)
    own = {axis: since for axis, since in inner[var].items() if axis in manual}
    spec, names, origins = split_by_both(eqn, index, own, inner)
    splits = {dimensions[k]: entry_axes(entry) for k, entry in enumerate(spec) if entry is not None}
    return Parts(splits, names, origins)
