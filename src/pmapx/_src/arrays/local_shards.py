"""Reading one index of the leading device axis on the device that holds it, without transfers."""

import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from pmapx._src import errors, fastpath
from pmapx._src.arrays.device_put import stacked_leaves
from pmapx._src.mesh import context_mesh
from pmapx._src.mesh.partition_specs import entry_axes
from pmapx._src.trees import checked_leaves


def unreplicate(tree: Any) -> Any:
    """Returns the first shard of every leaf on a local device, without its leading device axis.

    Use it for values that are equal on all devices, such as the state of a training loop. The
    result stays on its device, uncommitted, like ``x[0]`` of the original pmap's outputs. There is
    no communication, whereas ``x[0]`` of such an array in today's JAX is a collective.

    Examples:
      >>> import jax, numpy as np, pmapx
      >>> state = pmapx.replicate({"w": np.ones(3, np.float32)})
      >>> pmapx.unreplicate(state)["w"]
      Array([1., 1., 1.], dtype=float32)
    """
    flat, structure = jax.tree.flatten(tree)
    if all(_has_one_index_per_device(x) for x in flat):
        return jax.tree.unflatten(structure, [squeezed_shard(x, 0) for x in flat])
    stacked_leaves("unreplicate", "tree", tree)
    return jax.tree.unflatten(structure, [_at(x, _first_local_index(x)) for x in flat])


def local_slice(x: Any, i: int) -> Any:
    """Returns ``x[i]`` of every leaf on the device that holds it, without communication.

    Unlike ``x[i]``, it is safe to call from any thread. Negative indices count from the end.

    Examples:
      >>> import jax, numpy as np, pmapx
      >>> doubled = pmapx.pmap(lambda x: 2 * x)(np.arange(jax.device_count()))
      >>> int(pmapx.local_slice(doubled, -1)) == 2 * (jax.device_count() - 1)
      True

    Args:
      x: an array with a leading device axis, or a pytree of such arrays.
      i: an index along the leading axis, of a shard on a local device.
    """
    function = "local_slice"
    if isinstance(i, jax.core.Tracer):
        raise errors.NotConcrete(function, "argument 1 'i'", str(checked_leaves.abstract(i)))
    index = operator.index(i)
    flat, structure = stacked_leaves(function, "x", x)
    for leaf in flat:
        size, reason = leaf.shape[0], None
        if not -size <= index < size:
            reason = f"the axis has size {size}"
        elif isinstance(leaf, jax.Array) and index % size not in _local_indices(leaf):
            reason = f"its device belongs to a process other than {jax.process_index()}"
        if reason is not None:
            kind = str(checked_leaves.abstract(leaf))
            raise errors.NoSuchShard(function, index, kind, reason)
    return jax.tree.unflatten(structure, [_at(leaf, index % leaf.shape[0]) for leaf in flat])


def to_host(tree: Any) -> Any:
    """Returns one replica of every leaf as a NumPy array.

    Only the first local shard is read. On a CPU device it is not copied: the result may be
    read-only and keeps the device buffer alive. Typed PRNG keys stay JAX arrays.

    Examples:
      >>> import numpy as np, pmapx
      >>> pmapx.to_host(pmapx.replicate({"w": np.ones(3, np.float32)}))["w"]
      array([1., 1., 1.], dtype=float32)
    """
    flat, structure = stacked_leaves("to_host", "tree", tree)
    sources = [_source(x, _first_local_index(x)) for x in flat]
    for source, _ in sources:
        if isinstance(source, jax.Array) and not checked_leaves.is_key(source):
            source.copy_to_host_async()  # All transfers start before the first is waited for.
    replicas = [x[i] if checked_leaves.is_key(x) else np.asarray(x)[i] for x, i in sources]
    return jax.tree.unflatten(structure, replicas)


@functools.lru_cache(maxsize=4096)
def shard_positions(sharding: Sharding, shape: tuple[int, ...]) -> tuple[int | None, ...] | None:
    """Returns which local shard holds each index of the leading axis, if each device holds one.

    An entry is None if its device belongs to another process. For any other sharding, the result
    is None.
    """
    if not shape or not 1 < shape[0] == sharding.num_devices:
        return None
    try:
        if sharding.shard_shape(shape) != (1, *shape[1:]):
            return None
    except ValueError:  # The shape is not divisible.
        return None
    positions: list[int | None] = [None] * shape[0]
    for position, index in enumerate(sharding.addressable_devices_indices_map(shape).values()):
        if index is None:
            return None
        positions[index[0].start or 0] = position
    return tuple(positions)


def squeezed_shard(x: jax.Array, position: int) -> jax.Array:
    return _on_its_device(_squeeze, x.addressable_data(position))


def copied_shard(x: jax.Array, position: int) -> jax.Array:
    return _on_its_device(_copy, x.addressable_data(position))


_squeeze = jax.jit(lambda x: lax.squeeze(x, (0,)))
_copy = jax.jit(jnp.copy)
_index = jax.jit(lambda x, i: lax.dynamic_index_in_dim(x, i, keepdims=False))


def _on_its_device(program: Any, *args: Any) -> jax.Array:
    """Runs a program on one device; its uncommitted result can be combined with other arrays."""
    with context_mesh.without_context_mesh():
        return fastpath.uncommitted(program(*args))


def _has_one_index_per_device(x: Any) -> bool:
    return (
        isinstance(x, jax.Array)
        and not isinstance(x, jax.core.Tracer)
        and isinstance(x.dtype, np.dtype)  # PRNG keys have extended dtypes.
        and shard_positions(x.sharding, x.shape) is not None
    )


def _local_indices(x: jax.Array) -> set[int]:
    """Returns the indices of the leading axis that local devices hold, at least in part."""
    if x.is_fully_addressable:
        return set(range(x.shape[0]))
    return {i for shard in x.addressable_shards for i in _indices_of(shard, x)}


def _indices_of(shard: Any, x: jax.Array) -> range:
    """Returns the indices of the leading axis of ``x`` that a shard holds, at least in part."""
    return range(*shard.index[0].indices(x.shape[0]))


def _first_local_index(x: Any) -> int:
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return 0
    return min(_local_indices(x))


def _at(x: Any, i: int) -> Any:
    if not isinstance(x, jax.Array):
        return x[i]
    if checked_leaves.is_key(x):
        data = _at(jax.random.key_data(x), i)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    source, index = _source(x, i)
    if index is ...:
        return source
    if source.shape[0] == 1:
        return _on_its_device(_squeeze, source)
    return _on_its_device(_index, source, index)


def _source(x: Any, i: int) -> tuple[Any, Any]:
    """Returns an array on one device or on the host, and the index of ``x[i]`` in it."""
    if not isinstance(x, jax.Array):
        return x, i
    if checked_leaves.is_key(x):
        return _at(x, i), ...
    positions = shard_positions(x.sharding, x.shape)
    if positions is not None:
        position = positions[i]
        assert position is not None, "callers pass only local indices"
        return x.addressable_data(position), 0
    for shard in x.addressable_shards:
        held = _indices_of(shard, x)
        if i in held and shard.data.shape[1:] == x.shape[1:]:
            return shard.data, i - held.start
    return _at_sharded(x, i), ...


def _at_sharded(x: jax.Array, i: int) -> jax.Array:
    """Returns ``x[i]`` if it is itself sharded, still on the devices that hold its shards.

    Nested pmaps return such arrays: index ``i`` of the outer axis is sharded over the inner one.
    """
    if not isinstance(x.sharding, NamedSharding):
        return _at_on_host(x, i)
    mesh, spec = x.sharding.mesh, x.sharding.spec
    outer = entry_axes(spec[0])
    outer_sizes = [mesh.shape[name] for name in outer]
    group, index = divmod(i, x.shape[0] // math.prod(outer_sizes))
    place = dict(zip(outer, np.unravel_index(group, outer_sizes), strict=True))
    devices = mesh.devices[tuple(place.get(name, slice(None)) for name in mesh.axis_names)]
    names = tuple(name for name in mesh.axis_names if name not in place)
    sharding = NamedSharding(Mesh(devices, names), PartitionSpec(*spec[1:]))
    held = {shard.device: shard.data for shard in x.addressable_shards}
    with context_mesh.without_context_mesh():
        shards = [_index(held[d], index) for d in devices.flat if d in held]
    return jax.make_array_from_single_device_arrays(x.shape[1:], sharding, shards)


def _at_on_host(x: jax.Array, i: int) -> jax.Array:
    """Returns ``x[i]`` assembled on the host, for shardings without a mesh."""
    value = np.empty(x.shape[1:], x.dtype)
    for shard in x.addressable_shards:
        held = _indices_of(shard, x)
        if i in held:
            value[shard.index[1:]] = np.asarray(shard.data)[i - held.start]
    return jnp.asarray(value)
