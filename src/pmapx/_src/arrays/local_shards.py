"""Rows of stacked arrays, read where they lie: nothing is sent between devices."""

from __future__ import annotations

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
from pmapx._src.mesh import context_mesh
from pmapx._src.trees import checked_leaves


def unreplicate(tree: Any) -> Any:
    """Returns the first row of every leaf, from the first device of this process that has one.

    It is for what is equal on all devices, such as the state of a training loop. The row stays
    on its device and is not committed to it, as ``x[0]`` of the original pmap's outputs; nothing
    is communicated. Today's ``x[0]`` of such an array is a program on all devices.

    Example:
      >>> import jax, numpy as np, pmapx
      >>> state = pmapx.replicate({"w": np.ones(3, np.float32)})
      >>> pmapx.unreplicate(state)["w"]
      Array([1., 1., 1.], dtype=float32)
    """
    flat, structure = jax.tree.flatten(tree)
    if all(_is_row_a_device(x) for x in flat):
        return jax.tree.unflatten(structure, [row_at(x, 0) for x in flat])
    _stacked_leaves("unreplicate", "tree", tree)
    return jax.tree.unflatten(structure, [_row(x, _first_row_here(x)) for x in flat])


def local_slice(x: Any, i: int) -> Any:
    """Returns row ``i`` of every leaf, where it lies, without communication.

    Unlike ``x[i]`` it is safe from any thread. Negative indices count from the end.

    Example:
      >>> import jax, numpy as np, pmapx
      >>> rows = pmapx.pmap(lambda x: 2 * x)(np.arange(jax.device_count()))
      >>> int(pmapx.local_slice(rows, -1)) == 2 * (jax.device_count() - 1)
      True

    Args:
      x: an array with a leading axis, or a pytree of such.
      i: the index of a row that is on a device of this process.
    """
    function = "local_slice"
    if isinstance(i, jax.core.Tracer):
        raise errors.NotConcrete(function, "argument 1 'i'", str(checked_leaves.abstract(i)))
    index = operator.index(i)
    flat, structure = _stacked_leaves(function, "x", x)
    for leaf in flat:
        size = leaf.shape[0]
        if not -size <= index < size:
            raise errors.NoSuchRow(
                function, index, str(checked_leaves.abstract(leaf)), f"it has {size} rows"
            )
        if isinstance(leaf, jax.Array) and index % size not in _rows_here(leaf):
            reason = f"its device belongs to another process than {jax.process_index()}"
            raise errors.NoSuchRow(function, index, str(checked_leaves.abstract(leaf)), reason)
    return jax.tree.unflatten(structure, [_row(leaf, index % leaf.shape[0]) for leaf in flat])


def to_host(tree: Any) -> Any:
    """Returns one replica of every leaf as a numpy array.

    Only the first row is read, and on a CPU device it is not even copied: the result may be
    read-only, and keeps its memory alive. Typed keys, which numpy has not, stay arrays of JAX.

    Example:
      >>> import numpy as np, pmapx
      >>> pmapx.to_host(pmapx.replicate({"w": np.ones(3, np.float32)}))["w"]
      array([1., 1., 1.], dtype=float32)
    """
    flat, structure = _stacked_leaves("to_host", "tree", tree)
    sources = [_source(x, _first_row_here(x)) for x in flat]
    for source, _ in sources:
        if isinstance(source, jax.Array) and not checked_leaves.is_key(source):
            source.copy_to_host_async()  # All are on their way before the first is waited for.
    rows = [x[i] if checked_leaves.is_key(x) else np.asarray(x)[i] for x, i in sources]
    return jax.tree.unflatten(structure, rows)


@functools.lru_cache(maxsize=4096)
def holders(sharding: Sharding, shape: tuple[int, ...]) -> tuple[int | None, ...] | None:
    """Says which of an array's local shards is row ``i``, if it has one row a device.

    None stands for a row of another process; the whole is None for any other layout.
    """
    if not shape or not 1 < shape[0] == sharding.num_devices:
        return None
    try:
        if sharding.shard_shape(shape) != (1, *shape[1:]):
            return None
    except ValueError:  # It does not divide.
        return None
    positions: list[int | None] = [None] * shape[0]
    for position, index in enumerate(sharding.addressable_devices_indices_map(shape).values()):
        if index is None:
            return None
        positions[index[0].start or 0] = position
    return tuple(positions)


def row_at(x: jax.Array, position: int) -> jax.Array:
    """Returns the row that a local shard holds, without its leading axis, on its device."""
    return _on_its_device(_without_axis, x.addressable_data(position))


def slice_at(x: jax.Array, position: int) -> jax.Array:
    """Returns a copy of a local shard, on its device."""
    return _on_its_device(_copied, x.addressable_data(position))


_without_axis = jax.jit(lambda x: lax.squeeze(x, (0,)))
_copied = jax.jit(jnp.copy)
_indexed = jax.jit(lambda x, i: lax.dynamic_index_in_dim(x, i, keepdims=False))


def _on_its_device(program: Any, *args: Any) -> jax.Array:
    """Runs a program on one device; its result can be used with arrays of others, as of old."""
    with context_mesh.without_context_mesh():
        return fastpath.uncommitted(program(*args))


def _stacked_leaves(function: str, root: str, tree: Any) -> tuple[list[Any], Any]:
    flat, structure = checked_leaves.concrete(function, root, tree)
    for index, leaf in enumerate(flat):
        if not np.ndim(leaf):
            kind = checked_leaves.abstract(leaf)
            raise errors.NoLeadingAxis(function, checked_leaves.name(root, tree, index), str(kind))
    return flat, structure


def _is_row_a_device(x: Any) -> bool:
    return (
        isinstance(x, jax.Array)
        and not isinstance(x, jax.core.Tracer)
        and isinstance(x.dtype, np.dtype)  # Keys have types of JAX's own.
        and holders(x.sharding, x.shape) is not None
    )


def _rows_here(x: jax.Array) -> set[int]:
    """Returns the indices of the rows that devices of this process hold, or parts of them."""
    if x.is_fully_addressable:
        return set(range(x.shape[0]))
    return {i for shard in x.addressable_shards for i in _rows_of(shard, x)}


def _rows_of(shard: Any, x: jax.Array) -> range:
    """Returns the indices of the rows of ``x`` that a shard of it holds, or parts of them."""
    return range(*shard.index[0].indices(x.shape[0]))


def _first_row_here(x: Any) -> int:
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return 0
    return min(_rows_here(x))


def _row(x: Any, i: int) -> Any:
    if not isinstance(x, jax.Array):
        return x[i]
    if checked_leaves.is_key(x):
        data = _row(jax.random.key_data(x), i)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    source, index = _source(x, i)
    if index is ...:
        return source
    if source.shape[0] == 1:
        return _on_its_device(_without_axis, source)
    return _on_its_device(_indexed, source, index)


def _source(x: Any, i: int) -> tuple[Any, Any]:
    """Returns an array on one device, or of numpy, and where in it row ``i`` is."""
    if not isinstance(x, jax.Array):
        return x, i
    if checked_leaves.is_key(x):
        return _row(x, i), ...
    positions = holders(x.sharding, x.shape)
    if positions is not None:
        position = positions[i]
        assert position is not None, "only rows of this process are asked for"
        return x.addressable_data(position), 0
    for shard in x.addressable_shards:
        rows = _rows_of(shard, x)
        if i in rows and shard.data.shape[1:] == x.shape[1:]:
            return shard.data, i - rows.start
    return _divided_row(x, i), ...


def _divided_row(x: jax.Array, i: int) -> jax.Array:
    """Returns a row that several devices hold a part each of, left on those devices.

    Such rows come from nested maps: row ``i`` of the outer axis is an array over the inner one.
    """
    if not isinstance(x.sharding, NamedSharding):
        return _assembled_row(x, i)
    mesh, spec = x.sharding.mesh, x.sharding.spec
    outer = spec[0] if isinstance(spec[0], tuple) else (spec[0],) if spec[0] else ()
    rows_a_group = x.shape[0] // math.prod(mesh.shape[name] for name in outer)
    group, index = divmod(i, rows_a_group)
    place = dict(zip(outer, np.unravel_index(group, [mesh.shape[n] for n in outer]), strict=True))
    devices = mesh.devices[tuple(place.get(name, slice(None)) for name in mesh.axis_names)]
    names = tuple(name for name in mesh.axis_names if name not in place)
    sharding = NamedSharding(Mesh(devices, names), PartitionSpec(*spec[1:]))
    held = {shard.device: shard.data for shard in x.addressable_shards}
    with context_mesh.without_context_mesh():
        parts = [_indexed(held[d], index) for d in devices.flat if d in held]
    return jax.make_array_from_single_device_arrays(x.shape[1:], sharding, parts)


def _assembled_row(x: jax.Array, i: int) -> jax.Array:
    """Returns a row put together on the host, for layouts that do not say how they are made."""
    row = np.empty(x.shape[1:], x.dtype)
    for shard in x.addressable_shards:
        rows = _rows_of(shard, x)
        if i in rows:
            row[shard.index[1:]] = np.asarray(shard.data)[i - rows.start]
    return jnp.asarray(row)
