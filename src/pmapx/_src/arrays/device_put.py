"""Creating arrays with a leading device axis; each shard goes directly to its device."""

import collections
import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pmapx._src import errors, fastpath
from pmapx._src.mesh import context_mesh, device_mesh
from pmapx._src.trees import checked_leaves

Devices = Sequence[jax.Device]


def device_put_replicated(x: Any, devices: Devices) -> Any:
    """Places a copy of every leaf on each device, as shards of one array.

    Each copy is transferred directly to its device; the stacked array is never materialized on a
    single one. As with ``jax.device_put``, a CPU device may share the memory of a numpy array: do
    not write to it afterwards.

    Examples:
      >>> import jax, numpy as np, pmapx
      >>> devices = jax.devices()
      >>> params = pmapx.device_put_replicated({"w": np.ones(3, np.float32)}, devices)
      >>> params["w"].shape == (len(devices), 3)
      True

    Args:
      x: an array or a pytree of arrays, from NumPy or JAX, with any placement.
      devices: the devices, in the order of the leading axis.

    Returns:
      The tree, with a leading axis of size ``len(devices)`` on every leaf.
    """
    return _replicate("device_put_replicated", "x", x, devices)


def replicate(tree: Any, devices: Devices | None = None) -> Any:
    """Places a copy of every leaf on each device, by default on all local devices.

    Examples:
      >>> import jax, pmapx
      >>> state = pmapx.replicate({"step": 0})
      >>> state["step"].shape == (jax.local_device_count(),)
      True

    Args:
      tree: an array or a pytree of arrays.
      devices: the devices, in the order of the leading axis.

    Returns:
      The tree, with a leading axis of size ``len(devices)`` on every leaf.
    """
    return _replicate("replicate", "tree", tree, devices)


def device_put_sharded(shards: Sequence[Any], devices: Devices) -> Any:
    """Stacks the shards into one array along a leading axis, with shard ``i`` on device ``i``.

    Examples:
      >>> import jax, numpy as np, pmapx
      >>> devices = jax.devices()
      >>> shards = [np.full(3, i, np.float32) for i in range(len(devices))]
      >>> pmapx.device_put_sharded(shards, devices).shape == (len(devices), 3)
      True

    Args:
      shards: one array or pytree of arrays per device, all of the same structure, shapes and
        dtypes.
      devices: the devices, in the order of the shards.

    Returns:
      A tree like one shard, with a leading axis of size ``len(devices)`` on every leaf.
    """
    function = "device_put_sharded"
    listed = device_mesh.check_devices(devices, function)
    if not isinstance(shards, Sequence) or isinstance(shards, str | bytes):
        raise errors.ShardsNotASequence(function, shards)
    if len(shards) != len(listed):
        raise errors.ShardCountMismatch(function, len(shards), len(listed))
    per_leaf, structure = _checked_shards(function, shards)
    sharding = leading_axis_sharding(listed)
    local = [i for i, device in enumerate(listed) if device in sharding.addressable_devices]
    stacked = [_stack([leaf_shards[i] for i in local], sharding) for leaf_shards in per_leaf]
    return jax.tree.unflatten(structure, stacked)


def shard_batch(tree: Any, devices: Devices | None = None) -> Any:
    """Shards a batch over the devices: ``(n * b, ...)`` becomes ``(n, b, ...)``.

    Examples:
      >>> import jax, numpy as np, pmapx
      >>> n = jax.local_device_count()
      >>> batch = pmapx.shard_batch({"image": np.zeros((4 * n, 28, 28), np.float32)})
      >>> batch["image"].shape == (n, 4, 28, 28)
      True

    Args:
      tree: an array or a pytree of arrays, whose leading axis is divisible by the number of
        devices.
      devices: the devices, in the order of the leading axis; by default all local devices.

    Returns:
      The tree, with the leading axis of every leaf split in two, and index ``i`` of the first on
      device ``i``.
    """
    function = "shard_batch"
    listed = checked_or_local(devices, function)
    count = len(listed)
    flat, structure = stacked_leaves(function, "tree", tree)
    for index, leaf in enumerate(flat):
        kind = checked_leaves.abstract(leaf)
        if kind.shape[0] % count:
            name = checked_leaves.name("tree", tree, index)
            raise errors.UnevenBatch(function, name, str(kind), kind.shape[0], count)
    sharding = leading_axis_sharding(listed)
    with context_mesh.without_context_mesh():
        # An array on a device is sharded first, and each shard reshaped on its own device.
        ready = [_split(x, count) if checked_leaves.is_on_host(x) else x for x in flat]
        put = [
            x if checked_leaves.is_on_host(before) else _jitted_split(sharding)(x)
            for before, x in zip(flat, jax.device_put(ready, sharding), strict=True)
        ]
    return jax.tree.unflatten(structure, put)


def prefetch(
    iterator: Iterable[Any], size: int = 2, devices: Devices | None = None
) -> Iterator[Any]:
    """Yields the items of an iterator, transferred to the devices ``size`` items ahead.

    Transfers overlap with the computation on earlier items. Index ``i`` of the leading axis of
    every leaf is placed on device ``i``. An exception in the iterator is raised after the items
    before it. As with ``jax.device_put``, a CPU device may share the memory of a numpy array: yield
    a new one each time.

    Examples:
      >>> import jax, numpy as np, pmapx
      >>> batches = ({"x": np.full((jax.local_device_count(), 2), k)} for k in range(3))
      >>> sum(int(batch["x"].max()) for batch in pmapx.prefetch(batches))
      3

    Args:
      iterator: yields pytrees of arrays whose leading axis has size ``len(devices)``.
      size: how many items to transfer ahead; 2 is enough if transfers are faster than steps.
      devices: the devices, in the order of the leading axis; by default all local devices.

    Returns:
      An iterator over the same items, on the devices.
    """
    function = "prefetch"
    if isinstance(size, bool) or not hasattr(size, "__index__") or operator.index(size) < 1:
        raise errors.UnknownOption("size", size, "a positive integer", function)
    listed = checked_or_local(devices, function)
    if not isinstance(iterator, Iterable):
        raise errors.UnknownOption("iterator", iterator, "an iterable", function)
    return _ahead(iter(iterator), operator.index(size), listed)


@functools.lru_cache(maxsize=256)
def leading_axis_sharding(devices: tuple[jax.Device, ...]) -> NamedSharding:
    """Returns the sharding that places index ``i`` of the leading axis on device ``i``."""
    mesh = device_mesh.make_mesh(devices, [("devices", len(devices))])
    return NamedSharding(mesh, PartitionSpec("devices"))


def checked_or_local(devices: Devices | None, function: str) -> tuple[jax.Device, ...]:
    return device_mesh.check_devices(jax.local_devices() if devices is None else devices, function)


def stacked_leaves(function: str, root: str, tree: Any) -> tuple[list[Any], Any]:
    """Flattens a tree of concrete arrays that all have a leading axis."""
    flat, structure = checked_leaves.concrete(function, root, tree)
    for index, leaf in enumerate(flat):
        if not np.ndim(leaf):
            kind = checked_leaves.abstract(leaf)
            raise errors.NoLeadingAxis(function, checked_leaves.name(root, tree, index), str(kind))
    return flat, structure


def _replicate(function: str, root: str, tree: Any, devices: Devices | None) -> Any:
    sharding = leading_axis_sharding(checked_or_local(devices, function))
    flat, structure = checked_leaves.concrete(function, root, tree)
    return jax.tree.unflatten(structure, [_stack([x], sharding) for x in flat])


def _checked_shards(function: str, shards: Sequence[Any]) -> tuple[list[tuple[Any, ...]], Any]:
    """Returns the shards of each leaf; raises if they differ, before anything is transferred."""
    flat = [
        checked_leaves.concrete(function, f"shards[{i}]", shard) for i, shard in enumerate(shards)
    ]
    first, structure = flat[0]
    kinds = [checked_leaves.abstract(leaf) for leaf in first]
    for i, (leaves, found_structure) in enumerate(flat):
        if found_structure != structure:
            raise errors.ShardsDisagree(
                function, "shards[0]", str(structure), f"shards[{i}]", str(found_structure)
            )
        for index, (leaf, kind) in enumerate(zip(leaves, kinds, strict=True)):
            found = checked_leaves.abstract(leaf)
            if (found.shape, found.dtype) != (kind.shape, kind.dtype):
                one, other = (checked_leaves.name(f"shards[{k}]", shards[k], index) for k in (0, i))
                raise errors.ShardsDisagree(function, one, str(kind), other, str(found))
    return list(zip(*(leaves for leaves, _ in flat), strict=True)), structure


def _stack(values: list[Any], sharding: NamedSharding) -> jax.Array:
    """Stacks one value per local device, or copies of a single value, into an array."""
    kind = checked_leaves.abstract(values[0])
    if jnp.issubdtype(kind.dtype, jax.dtypes.prng_key):
        data = _stack([jax.random.key_data(key) for key in values], sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(values[0]))
    shards = [_with_leading_axis(x, kind.dtype) for x in values]
    if len(shards) == 1:
        shards *= len(sharding.addressable_devices)
    stacked = kind._replace(shape=(sharding.num_devices, *kind.shape))
    return fastpath.put_shards(shards, stacked, sharding)


def _with_leading_axis(x: Any, dtype: Any) -> Any:
    """Returns ``x`` with a leading axis of size 1, on the host or on one device."""
    if checked_leaves.is_on_host(x):
        return np.asarray(x, dtype)[np.newaxis]
    with context_mesh.without_context_mesh():
        if x.sharding.num_devices > 1:
            x = jax.device_put(x, min(x.sharding.addressable_devices, key=lambda d: d.id))
        return _expand(x)


@functools.lru_cache(maxsize=256)
def _jitted_split(sharding: NamedSharding) -> Any:
    return jax.jit(lambda x: _split(x, sharding.num_devices), out_shardings=sharding)


def _split(x: Any, count: int) -> Any:
    return x.reshape(count, x.shape[0] // count, *x.shape[1:])


_expand = jax.jit(lambda x: jnp.expand_dims(x, 0))


def _ahead(source: Iterator[Any], size: int, devices: tuple[jax.Device, ...]) -> Iterator[Any]:
    queue: collections.deque[Any] = collections.deque()
    failure: Exception | None = None
    exhausted = False
    while True:
        while not exhausted and len(queue) < size:
            try:
                queue.append(_put(next(source), devices))
            except StopIteration:
                exhausted = True
            except Exception as error:
                failure, exhausted = error, True
        if not queue:
            break
        yield queue.popleft()
    if failure is not None:
        raise failure


def _put(item: Any, devices: tuple[jax.Device, ...]) -> Any:
    flat, structure = checked_leaves.concrete("prefetch", "item", item)
    for index, leaf in enumerate(flat):
        if np.shape(leaf)[:1] != (len(devices),):
            name, kind = checked_leaves.name("item", item, index), checked_leaves.abstract(leaf)
            raise errors.WrongLeadingAxis("prefetch", name, str(kind), len(devices))
    sharding = leading_axis_sharding(devices)
    with context_mesh.without_context_mesh():
        return jax.tree.unflatten(structure, jax.device_put(flat, sharding))
