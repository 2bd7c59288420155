"""How an array lies on devices, and whether what they hold of it is the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from pmapx.audit import variation

COMPARED_AT_MOST = 256 * 2**20
"""Bytes of an array up to which its parts are compared; larger ones are taken to differ."""


def shard_shape(shape: Sequence[int], sharding: Sharding | None) -> tuple[int, ...]:
    """Returns the shape of what a device holds of an array."""
    if sharding is None:
        return tuple(shape)
    try:
        return tuple(sharding.shard_shape(tuple(shape)))
    except ValueError:  # It does not divide; XLA pads.
        return tuple(shape)


def axes_by_dimension(
    shape: Sequence[int], sharding: Sharding | None
) -> tuple[tuple[str, ...], ...]:
    """Returns the mesh axes that split each dimension; ``?`` where the sharding names none.

    >>> import jax
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    >>> mesh = Mesh(np.array(jax.devices()), ("i",))
    >>> axes_by_dimension((jax.device_count(), 4), NamedSharding(mesh, P("i")))
    (('i',), ())
    """
    if isinstance(sharding, NamedSharding):
        entries = [*sharding.spec, *[None] * len(shape)][: len(shape)]
        return tuple(tuple(map(str, variation.entry_axes(entry))) for entry in entries)
    held = shard_shape(shape, sharding)
    return tuple(("?",) if part != whole else () for part, whole in zip(held, shape, strict=True))


def named(sharding: Any, mesh: Mesh, shape: Sequence[int]) -> Any:
    """Returns a sharding by the names of a mesh's axes, or as it is if no names give it."""
    if sharding is None or isinstance(sharding, NamedSharding):
        return sharding
    parts = [
        whole // part if part else 1
        for whole, part in zip(shape, shard_shape(shape, sharding), strict=True)
    ]
    groups = [
        axes
        for count in range(len(mesh.axis_names) + 1)
        for axes in itertools.permutations(mesh.axis_names, count)
    ]
    fitting = [[g for g in groups if math.prod(mesh.shape[a] for a in g) == n] for n in parts]
    for entries in itertools.product(*fitting):
        used = [axis for axes in entries for axis in axes]
        if len(used) == len(set(used)):
            candidate = NamedSharding(mesh, PartitionSpec(*(axes or None for axes in entries)))
            if candidate.is_equivalent_to(sharding, len(shape)):
                return candidate
    return sharding


def size_in_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Returns the memory of an array; of keys, that of their data."""
    itemsize = getattr(dtype, "itemsize", 0)
    return math.prod(shape) * int(itemsize)


def holds_the_same_everywhere(x: Any, wanted: Sharding | None) -> bool | None:
    """Compares what each device holds, or would hold, of an array; None if it was not compared."""
    if wanted is None or not isinstance(x, jax.Array | np.ndarray) or _is_key(x):
        return None
    if isinstance(x, jax.Array) and (x.is_deleted() or not x.is_fully_addressable):
        return None
    if x.nbytes > COMPARED_AT_MOST:
        return None
    if isinstance(x, jax.Array) and x.sharding.is_equivalent_to(wanted, x.ndim):
        parts = [np.asarray(shard.data) for shard in x.addressable_shards]
    else:
        whole = np.asarray(x)
        try:
            indices = wanted.devices_indices_map(x.shape).values()
        except ValueError:
            return None
        parts = [whole[index] for index in indices if index is not None]
    first = parts[0].tobytes()
    return all(part.shape == parts[0].shape and part.tobytes() == first for part in parts[1:])


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.extended)
