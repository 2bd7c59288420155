"""Arrays laid out one row a device, as pmap takes and gives them: put straight where they go."""

from __future__ import annotations

import functools
from collections.abc import Sequence
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
    """Puts a copy of every leaf on each device, as rows of one array.

    Each device gets its copy straight from where the leaf lies; the stacked array exists on no
    device. As with ``jax.device_put``, a CPU device may share the memory of a numpy array: do not
    write to it afterwards.

    Example:
      >>> import jax, numpy as np, pmapx
      >>> devices = jax.devices()
      >>> params = pmapx.device_put_replicated({"w": np.ones(3, np.float32)}, devices)
      >>> params["w"].shape == (len(devices), 3)
      True

    Args:
      x: an array, or a pytree of arrays: numpy's or JAX's, wherever they lie.
      devices: the devices, in the order of the rows.

    Returns:
      The tree with a leading axis as long as ``devices`` on every leaf.
    """
    return _replicate("device_put_replicated", "x", x, devices)


def replicate(tree: Any, devices: Devices | None = None) -> Any:
    """Puts a copy of every leaf on each device; by default on all of this process.

    Example:
      >>> import jax, pmapx
      >>> state = pmapx.replicate({"step": 0})
      >>> state["step"].shape == (jax.local_device_count(),)
      True

    Args:
      tree: an array, or a pytree of arrays.
      devices: the devices, in the order of the rows.

    Returns:
      The tree with a leading axis as long as ``devices`` on every leaf.
    """
    return _replicate("replicate", "tree", tree, _or_local(devices))


def device_put_sharded(shards: Sequence[Any], devices: Devices) -> Any:
    """Puts shard ``i`` on device ``i``, as row ``i`` of one array.

    Example:
      >>> import jax, numpy as np, pmapx
      >>> devices = jax.devices()
      >>> rows = [np.full(3, i, np.float32) for i in range(len(devices))]
      >>> pmapx.device_put_sharded(rows, devices).shape == (len(devices), 3)
      True

    Args:
      shards: one array, or one pytree of arrays, for each device; all of the same structure,
        shapes and types.
      devices: the devices, in the order of the shards.

    Returns:
      A tree like one shard, with a leading axis as long as ``devices`` on every leaf.
    """
    function = "device_put_sharded"
    listed = device_mesh.check_devices(devices, function)
    if not isinstance(shards, Sequence) or isinstance(shards, str | bytes):
        raise errors.ShardsNotASequence(function, shards)
    if len(shards) != len(listed):
        raise errors.ShardCountMismatch(function, len(shards), len(listed))
    columns, structure = _checked_shards(function, shards)
    rows = rows_over(listed)
    here = [i for i, device in enumerate(listed) if device in rows.addressable_devices]
    stacked = [_stack([column[i] for i in here], rows) for column in columns]
    return jax.tree.unflatten(structure, stacked)


def shard_batch(tree: Any, devices: Devices | None = None) -> Any:
    """Splits a batch over the devices: ``(n * b, ...)`` to ``(n, b, ...)``, device ``i`` row ``i``.

    Example:
      >>> import jax, numpy as np, pmapx
      >>> n = jax.local_device_count()
      >>> batch = pmapx.shard_batch({"image": np.zeros((4 * n, 28, 28), np.float32)})
      >>> batch["image"].shape == (n, 4, 28, 28)
      True

    Args:
      tree: an array, or a pytree of arrays, whose leading axis the number of devices divides.
      devices: the devices, in the order of the parts; by default all of this process.

    Returns:
      The tree on the devices, with the leading axis of every leaf split in two.
    """
    function = "shard_batch"
    listed = device_mesh.check_devices(_or_local(devices), function)
    count = len(listed)
    flat, structure = checked_leaves.concrete(function, "tree", tree)
    for index, leaf in enumerate(flat):
        kind = checked_leaves.abstract(leaf)
        if not kind.shape:
            raise errors.NoLeadingAxis(
                function, checked_leaves.name("tree", tree, index), str(kind)
            )
        if kind.shape[0] % count:
            name = checked_leaves.name("tree", tree, index)
            raise errors.UnevenBatch(function, name, str(kind), kind.shape[0], count)
    rows = rows_over(listed)
    with context_mesh.without_context_mesh():
        # What lies on a device is sent in parts first, and each part reshaped where it arrives.
        ready = [_split(x, count) if checked_leaves.is_on_host(x) else x for x in flat]
        put = jax.device_put(ready, rows)
        put = [
            x if checked_leaves.is_on_host(before) else _splitting(rows)(x)
            for before, x in zip(flat, put, strict=True)
        ]
    return jax.tree.unflatten(structure, put)


@functools.lru_cache(maxsize=256)
def rows_over(devices: tuple[jax.Device, ...]) -> NamedSharding:
    """Returns the layout that has row ``i`` on device ``i``."""
    mesh = device_mesh.make_mesh(devices, [("rows", len(devices))])
    return NamedSharding(mesh, PartitionSpec("rows"))


def _or_local(devices: Devices | None) -> Devices:
    return jax.local_devices() if devices is None else devices


def _replicate(function: str, root: str, tree: Any, devices: Devices) -> Any:
    listed = device_mesh.check_devices(devices, function)
    flat, structure = checked_leaves.concrete(function, root, tree)
    rows = rows_over(listed)
    return jax.tree.unflatten(structure, [_stack([x], rows) for x in flat])


def _checked_shards(function: str, shards: Sequence[Any]) -> tuple[list[tuple[Any, ...]], Any]:
    """Returns each leaf of all shards; refuses shards that differ, before anything is put."""
    flat = [
        checked_leaves.concrete(function, f"shards[{i}]", shard) for i, shard in enumerate(shards)
    ]
    first, structure = flat[0]
    kinds = [checked_leaves.abstract(leaf) for leaf in first]
    for i, (row, row_structure) in enumerate(flat):
        if row_structure != structure:
            raise errors.ShardsDisagree(
                function, "shards[0]", str(structure), f"shards[{i}]", str(row_structure)
            )
        for index, (leaf, kind) in enumerate(zip(row, kinds, strict=True)):
            found = checked_leaves.abstract(leaf)
            if (found.shape, found.dtype) != (kind.shape, kind.dtype):
                one, other = (checked_leaves.name(f"shards[{k}]", shards[k], index) for k in (0, i))
                raise errors.ShardsDisagree(function, one, str(kind), other, str(found))
    return list(zip(*(row for row, _ in flat), strict=True)), structure


def _stack(values: list[Any], rows: NamedSharding) -> jax.Array:
    """Makes an array of a value for each device of this process, or of one for all of them."""
    kind = checked_leaves.abstract(values[0])
    if jnp.issubdtype(kind.dtype, jax.dtypes.prng_key):
        impl = jax.random.key_impl(values[0])
        return jax.random.wrap_key_data(_stack(_key_data(values), rows), impl=impl)
    parts = [_as_row(x, kind.dtype) for x in values]
    if len(parts) == 1:
        parts *= len(rows.addressable_devices)
    whole = kind._replace(shape=(rows.num_devices, *kind.shape))
    return fastpath.put_shards(parts, whole, rows)


def _key_data(keys: list[Any]) -> list[Any]:
    return [jax.random.key_data(key) for key in keys]


def _as_row(x: Any, dtype: Any) -> Any:
    """Returns ``x`` with a leading axis of 1, on the host or on one device."""
    if checked_leaves.is_on_host(x):
        return np.asarray(x, dtype)[np.newaxis]
    with context_mesh.without_context_mesh():
        if x.sharding.num_devices > 1:
            x = jax.device_put(x, min(x.sharding.addressable_devices, key=lambda d: d.id))
        return _expand(x)


@functools.lru_cache(maxsize=256)
def _splitting(rows: NamedSharding) -> Any:
    return jax.jit(lambda x: _split(x, rows.num_devices), out_shardings=rows)


def _split(x: Any, count: int) -> Any:
    return x.reshape(count, x.shape[0] // count, *x.shape[1:])


_expand = jax.jit(lambda x: jnp.expand_dims(x, 0))
