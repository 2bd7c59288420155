"""Host-local arrays and global ones: the same shards, seen as this process's rows or as all rows.

A global array lies on devices of several processes. What one process holds of it, as an array of
its own, is host-local. Going from one to the other copies nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from pmapx import placement, shares


def is_global(x: Any) -> bool:
    """Says whether ``x`` lies on devices of other processes too."""
    return isinstance(x, jax.Array) and not x.is_fully_addressable


@functools.lru_cache(maxsize=4096)
def local_sharding(sharding: NamedSharding) -> NamedSharding:
    """Returns where this process's rows of a global array lie."""
    assert isinstance(sharding.mesh, Mesh)
    return NamedSharding(shares.local_mesh(sharding.mesh), sharding.spec)


def local_shape(shape: tuple[int, ...], sharding: NamedSharding) -> tuple[int, ...]:
    """Returns the shape of this process's rows of a global array."""
    return _scaled(shape, sharding, sharding.mesh, local_sharding(sharding).mesh)


def global_shape(shape: tuple[int, ...], sharding: NamedSharding) -> tuple[int, ...]:
    """Returns the shape of the global array that has ``shape`` in this process."""
    return _scaled(shape, sharding, local_sharding(sharding).mesh, sharding.mesh)


def _scaled(shape: tuple[int, ...], sharding: NamedSharding, old: Any, new: Any) -> tuple[int, ...]:
    """Scales the dimension that the first mesh axis splits from one mesh to another."""
    rows = sharding.mesh.axis_names[0]
    scaled = list(shape)
    for dimension, names in enumerate(sharding.spec):
        if rows in (names if type(names) is tuple else (names,)):
            scaled[dimension] = shape[dimension] * new.shape[rows] // old.shape[rows]
    return tuple(scaled)


def to_global(x: Any, sharding: NamedSharding) -> Any:
    """Returns the global array that has ``x`` as this process's rows; ``x`` may lie elsewhere."""
    if is_global(x):
        return x if placement.is_placed(x, sharding) else placement.move(x, sharding)
    shape = global_shape(np.shape(x), sharding)
    if getattr(x, "dtype", None) == jax.dtypes.float0:
        return np.zeros(shape, jax.dtypes.float0)
    local = to_place(x, local_sharding(sharding))
    shards = [shard.data for shard in local.addressable_shards]
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def to_place(x: Any, sharding: NamedSharding) -> jax.Array:
    """Returns host-local ``x`` on its devices."""
    if not isinstance(x, jax.Array) or not x.committed:
        return jax.device_put(x, sharding)
    return x if placement.is_placed(x, sharding) else placement.move(x, sharding)


def to_local(x: Any, sharding: NamedSharding) -> Any:
    """Returns this process's rows of a global array that lies as ``sharding`` says."""
    shape = local_shape(x.shape, sharding)
    if x.dtype == jax.dtypes.float0:
        return np.zeros(shape, jax.dtypes.float0)
    shards = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(shape, local_sharding(sharding), shards)
