"""Host-local arrays and global ones.

A global array has shards on the devices of several processes. A host-local array has this process's
shards alone. Converting one to the other copies nothing.
"""

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._src.mesh import process_shards
from pmapx._src.mesh.partition_specs import entry_axes
from pmapx._src.mesh.resharding import is_placed, reshard


def is_global(x: Any) -> bool:
    return isinstance(x, jax.Array) and not x.is_fully_addressable


@functools.lru_cache(maxsize=4096)
def local_sharding(sharding: NamedSharding) -> NamedSharding:
    assert isinstance(sharding.mesh, Mesh)
    return NamedSharding(process_shards.local_mesh(sharding.mesh), sharding.spec)


def local_shape(shape: tuple[int, ...], sharding: NamedSharding) -> tuple[int, ...]:
    return _scaled(shape, sharding, local_sharding(sharding).mesh, sharding.mesh)


def global_shape(shape: tuple[int, ...], sharding: NamedSharding) -> tuple[int, ...]:
    """Returns the shape of the global array that has ``shape`` in this process."""
    return _scaled(shape, sharding, sharding.mesh, local_sharding(sharding).mesh)


def _scaled(
    shape: tuple[int, ...], sharding: NamedSharding, new: Any, old: Any = None
) -> tuple[int, ...]:
    """Scales the sharded dimensions to a mesh, from another one or from one device."""
    scaled = list(shape)
    for dimension, entry in enumerate(sharding.spec):
        for axis in entry_axes(entry):
            before = 1 if old is None else old.shape[axis]
            scaled[dimension] = scaled[dimension] * new.shape[axis] // before
    return tuple(scaled)


def to_global(x: Any, sharding: NamedSharding) -> Any:
    """Returns the global array of host-local ``x``, which may have any sharding."""
    if is_global(x):
        return x if is_placed(x, sharding) else reshard(x, sharding)
    return _from_local(x, sharding, global_shape(np.shape(x), sharding), sharding)


def to_shards(x: Any, sharding: NamedSharding) -> Any:
    """Returns the shards of ``x``, host-local or global, as one replicated array."""
    replicated = NamedSharding(sharding.mesh, PartitionSpec())
    if is_global(x):
        x = to_global(x, sharding)
        shape = sharding.shard_shape(x.shape)
        shards = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(shape, replicated, shards)
    shape = local_sharding(sharding).shard_shape(np.shape(x))
    return _from_local(x, sharding, shape, replicated)


def _from_local(x: Any, sharding: NamedSharding, shape: tuple[int, ...], out_sharding: Any) -> Any:
    """Returns the shards of host-local ``x`` as an array of another shape and sharding."""
    if getattr(x, "dtype", None) == jax.dtypes.float0:
        return np.zeros(shape, jax.dtypes.float0)
    wanted = local_sharding(sharding)
    if not isinstance(x, jax.Array) or not x.committed:
        x = jax.device_put(x, wanted)
    elif not is_placed(x, wanted):
        x = reshard(x, wanted)
    shards = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(shape, out_sharding, shards)


def to_local(x: Any, sharding: NamedSharding) -> Any:
    """Returns the host-local array of a global one with this sharding."""
    return _to_local(x, sharding, local_shape(x.shape, sharding))


def from_shards(x: Any, sharding: NamedSharding) -> Any:
    """Returns the host-local array whose shards ``to_shards`` made a replicated array of."""
    return _to_local(x, sharding, _scaled(x.shape, sharding, local_sharding(sharding).mesh))


def _to_local(x: Any, sharding: NamedSharding, shape: tuple[int, ...]) -> Any:
    """Returns the addressable shards of ``x`` as a host-local array of that shape."""
    if x.dtype == jax.dtypes.float0:
        return np.zeros(shape, jax.dtypes.float0)
    shards = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(shape, local_sharding(sharding), shards)
