"""Host-local arrays and global ones: the same shards, seen as this process's rows or as all rows.

A global array lies on devices of several processes. What one process holds of it, as an array of
its own, is host-local. Going from one to the other copies nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._src.mesh import placement, process_shards


def is_global(x: Any) -> bool:
    """Says whether ``x`` lies on devices of other processes too."""
    return isinstance(x, jax.Array) and not x.is_fully_addressable


@functools.lru_cache(maxsize=4096)
def local_sharding(sharding: NamedSharding) -> NamedSharding:
    """Returns where this process's rows of a global array lie."""
    assert isinstance(sharding.mesh, Mesh)
    return NamedSharding(process_shards.local_mesh(sharding.mesh), sharding.spec)


def local_shape(shape: tuple[int, ...], sharding: NamedSharding) -> tuple[int, ...]:
    """Returns the shape of this process's rows of a global array."""
    return _scaled(shape, sharding, sharding.mesh, local_sharding(sharding).mesh)


def global_shape(shape: tuple[int, ...], sharding: NamedSharding) -> tuple[int, ...]:
    """Returns the shape of the global array that has ``shape`` in this process."""
    return _scaled(shape, sharding, local_sharding(sharding).mesh, sharding.mesh)


def _scaled(shape: tuple[int, ...], sharding: NamedSharding, old: Any, new: Any) -> tuple[int, ...]:
    """Scales the dimensions that mesh axes split from one mesh to another."""
    scaled = list(shape)
    for dimension, names in enumerate(sharding.spec):
        for name in names if type(names) is tuple else (names,):
            if name is not None:
                scaled[dimension] = scaled[dimension] * new.shape[name] // old.shape[name]
    return tuple(scaled)


def to_global(x: Any, sharding: NamedSharding) -> Any:
    """Returns the global array that has ``x`` as this process's rows; ``x`` may lie elsewhere."""
    if is_global(x):
        return x if placement.is_placed(x, sharding) else placement.move(x, sharding)
    return _stitched(x, sharding, global_shape(np.shape(x), sharding), sharding)


def to_shards(x: Any, sharding: NamedSharding) -> Any:
    """Returns what each device holds of ``x``, host-local or global, as if it were all of it."""
    as_whole = NamedSharding(sharding.mesh, PartitionSpec())
    if is_global(x):
        x = to_global(x, sharding)
        shape = sharding.shard_shape(x.shape)
        shards = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(shape, as_whole, shards)
    shape = local_sharding(sharding).shard_shape(np.shape(x))
    return _stitched(x, sharding, shape, as_whole)


def _stitched(x: Any, sharding: NamedSharding, shape: tuple[int, ...], seen_as: Any) -> Any:
    """Returns the shards of host-local ``x`` as an array of another shape and sharding."""
    if getattr(x, "dtype", None) == jax.dtypes.float0:
        return np.zeros(shape, jax.dtypes.float0)
    local = to_place(x, local_sharding(sharding))
    shards = [shard.data for shard in local.addressable_shards]
    return jax.make_array_from_single_device_arrays(shape, seen_as, shards)


def to_place(x: Any, sharding: NamedSharding) -> jax.Array:
    """Returns host-local ``x`` on its devices."""
    if not isinstance(x, jax.Array) or not x.committed:
        return jax.device_put(x, sharding)
    return x if placement.is_placed(x, sharding) else placement.move(x, sharding)


def to_local(x: Any, sharding: NamedSharding) -> Any:
    """Returns this process's rows of a global array that lies as ``sharding`` says."""
    return _taken_apart(x, sharding, local_shape(x.shape, sharding))


def from_shards(x: Any, sharding: NamedSharding) -> Any:
    """Returns this process's rows, given what each device holds as if it were all of it."""
    sizes = local_sharding(sharding).mesh.shape
    shape = list(x.shape)
    for dimension, names in enumerate(sharding.spec):
        for name in names if type(names) is tuple else (names,):
            shape[dimension] *= 1 if name is None else sizes[name]
    return _taken_apart(x, sharding, tuple(shape))


def _taken_apart(x: Any, sharding: NamedSharding, shape: tuple[int, ...]) -> Any:
    """Returns the shards of ``x`` that are here as a host-local array of that shape."""
    if x.dtype == jax.dtypes.float0:
        return np.zeros(shape, jax.dtypes.float0)
    shards = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(shape, local_sharding(sharding), shards)
