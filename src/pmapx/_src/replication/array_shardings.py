"""How an array is sharded, and whether its shards are equal."""

import hashlib
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from pmapx._src.mesh.partition_specs import entry_axes
from pmapx._src.trees.checked_leaves import is_key

COMPARED_AT_MOST = 256 * 2**20
"""Bytes of an array up to which its shards are compared; larger ones are not."""


def shard_shape(shape: Sequence[int], sharding: Sharding | None) -> tuple[int, ...]:
    if sharding is None:
        return tuple(shape)
    try:
        return tuple(sharding.shard_shape(tuple(shape)))
    except ValueError:  # It does not divide; XLA pads.
        return tuple(shape)


def axes_by_dimension(
    shape: Sequence[int], sharding: Sharding | None
) -> tuple[tuple[str, ...], ...]:
    """Returns the mesh axes that shard each dimension; ``?`` where the sharding has no names.

    >>> import jax
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    >>> mesh = Mesh(np.array(jax.devices()), ("i",))
    >>> axes_by_dimension((jax.device_count(), 4), NamedSharding(mesh, P("i")))
    (('i',), ())
    """
    if isinstance(sharding, NamedSharding):
        entries = [*sharding.spec, *[None] * len(shape)][: len(shape)]
        return tuple(tuple(map(str, entry_axes(entry))) for entry in entries)
    held = shard_shape(shape, sharding)
    return tuple(("?",) if part != size else () for part, size in zip(held, shape, strict=True))


def named(sharding: Any, mesh: Mesh, shape: Sequence[int]) -> Any:
    """Returns a sharding as an equivalent ``NamedSharding`` of a mesh, or as it is."""
    if sharding is None or isinstance(sharding, NamedSharding):
        return sharding
    parts = [
        size // part if part else 1
        for size, part in zip(shape, shard_shape(shape, sharding), strict=True)
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


def axes_that_differ(x: Any, wanted: Sharding | None) -> frozenset[str] | None:
    """Returns the mesh axes along which the shards of an array differ, or would differ.

    Empty: all are equal. None: they were not compared. ``?`` stands for axes without names.

    >>> import jax
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    >>> mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    >>> axes_that_differ(np.ones((1, 2)), NamedSharding(mesh, P("i")))
    frozenset()
    """
    if wanted is None or not isinstance(x, jax.Array | np.ndarray):
        return None
    if isinstance(x, jax.Array) and (x.is_deleted() or not x.is_fully_addressable):
        return None
    data: Any = jax.random.key_data(x) if is_key(x) else x
    if data.nbytes > COMPARED_AT_MOST:
        return None
    mesh = wanted.mesh if isinstance(wanted, NamedSharding) else None
    names = tuple(mesh.axis_names) if isinstance(mesh, Mesh) else ("?",)
    is_placed = isinstance(x, jax.Array) and x.sharding.is_equivalent_to(wanted, x.ndim)
    if isinstance(x, jax.Array) and not is_placed and _has_unequal_replicas(data):
        return frozenset(names)  # Which replica goes where is not known.
    try:
        parts = _held_parts(data) if is_placed else _parts(np.asarray(data), x.shape, wanted)
    except ValueError:  # It does not divide.
        return None
    if len(set(parts.values())) <= 1:
        return frozenset()
    if not isinstance(mesh, Mesh):
        return frozenset(names)
    placed = np.vectorize(parts.get, otypes=[object])(mesh.devices)
    return frozenset(name for k, name in enumerate(names) if (placed != placed.take([0], k)).any())


def could_differ(x: Any) -> bool:
    """Returns whether equal shards of an array mean anything: constants and broadcasts are equal.

    >>> could_differ(np.zeros((8, 4))), could_differ(np.broadcast_to(np.arange(4), (8, 4)))
    (False, False)
    >>> could_differ(np.tile(np.arange(4), (8, 1)))
    True
    """
    if isinstance(x, np.ndarray) and any(
        stride == 0 and size > 1 for stride, size in zip(x.strides, x.shape, strict=True)
    ):
        return False
    if is_key(x):  # Random keys are never placeholders.
        return True
    shards = [x] if isinstance(x, np.ndarray) else [
        np.asarray(shard.data) for shard in x.addressable_shards
    ]  # fmt: skip
    first = next((shard.reshape(-1)[0] for shard in shards if shard.size), None)
    return any(bool((shard != first).any()) for shard in shards)


def _held_parts(x: jax.Array) -> dict[jax.Device, bytes]:
    return {shard.device: _digest(np.asarray(shard.data)) for shard in x.addressable_shards}


def _parts(
    x: np.ndarray[Any, Any], shape: tuple[int, ...], wanted: Sharding
) -> dict[jax.Device, bytes]:
    indices = wanted.devices_indices_map(shape)
    return {device: _digest(x[index]) for device, index in indices.items() if index is not None}


def _has_unequal_replicas(x: jax.Array) -> bool:
    versions: dict[str, set[bytes]] = {}
    for shard in x.addressable_shards:
        versions.setdefault(str(shard.index), set()).add(_digest(np.asarray(shard.data)))
    return any(len(several) > 1 for several in versions.values())


def _digest(part: np.ndarray[Any, Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(part).tobytes(), digest_size=16).digest()
