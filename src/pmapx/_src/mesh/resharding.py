"""Transfers of inputs to the sharding that a program needs."""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from pmapx._src.mesh.context_mesh import without_context_mesh


def is_placed(x: Any, wanted: Sharding) -> bool:
    """Whether a program takes ``x`` as it is: uncommitted, from the host, or in this sharding."""
    if not isinstance(x, jax.Array) or not x.committed:
        return True
    found = x.sharding
    return bool(found == wanted or found.is_equivalent_to(wanted, x.ndim))


def reason_to_transfer(x: jax.Array, wanted: Sharding) -> str:
    found, needed = x.sharding, wanted.device_set
    count = len(found.device_set)
    if count == 1:
        (device,) = found.device_set
        return f"it is committed to {device}"
    if found.device_set != needed:
        return f"it is on {count} devices, {found}, not on the {len(needed)} of the pmap"
    if found.is_fully_replicated:
        return f"it is replicated over the {count} devices, not sharded along the mapped axis"
    return f"it is sharded another way, {found}"


def is_transfer_guarded() -> bool:
    """Whether JAX's transfer guard disallows implicit transfers between devices."""
    setting = jax.config.jax_transfer_guard_device_to_device  # type: ignore[attr-defined]
    return str(setting).startswith("disallow")


def reshard(x: jax.Array, wanted: Sharding) -> jax.Array:
    """Transfers ``x`` to ``wanted`` in the cheapest way.

    Between the same devices a program does it, which sends only what a device does not have yet.
    From one device, JAX slices the array and sends each device its shard. From several others, each
    shard is sent straight from a device that holds all of it, if there is one.
    """
    with without_context_mesh():
        devices = x.sharding.device_set
        if devices == wanted.device_set and len(devices) > 1:
            with contextlib.suppress(ValueError):  # One program has its devices in one order.
                return _resharding(wanted)(x)
        if len(devices) == 1:
            # JAX cannot slice an array of one device whose type has a mesh with Explicit axes.
            with contextlib.suppress(ValueError):
                return jax.device_put(x, wanted)
        return _reshard_slices(x, wanted)


@functools.lru_cache(maxsize=256)
def _resharding(wanted: Sharding) -> Any:
    return jax.jit(lambda x: x, out_shardings=wanted)


def _reshard_slices(x: jax.Array, wanted: Sharding) -> jax.Array:
    slices = _slices(x, wanted)
    if slices is None:
        return jax.device_put(x, wanted)
    shards = [
        jax.device_put(_slice(source.data, *bounds), device)
        for device, (source, bounds) in slices.items()
    ]
    return jax.make_array_from_single_device_arrays(x.shape, wanted, shards)


def reshard_donated(x: jax.Array, wanted: Sharding) -> jax.Array:
    """Transfers ``x``, which is donated, and frees each shard of it once that is transferred.

    At most one shard exists twice, unless a device has to keep a larger one until its last slice
    is sent.
    """
    slices = _slices(x, wanted)
    if slices is None:
        result = jax.block_until_ready(reshard(x, wanted))
        x.delete()
        return result
    shards = {}
    for held in x.addressable_shards:
        data = held.data
        for device, (source, bounds) in slices.items():
            if source.device == held.device:
                part = jax.device_put(_slice(data, *bounds), device, may_alias=False)
                shards[device] = jax.block_until_ready(part)
        data.delete()
    return jax.make_array_from_single_device_arrays(
        x.shape, wanted, [shards[device] for device in slices]
    )


Bounds = tuple[tuple[int, int], ...]
"""The start and end of a shard in each dimension."""


def _slices(
    x: jax.Array, wanted: Sharding
) -> dict[jax.Device, tuple[Any, tuple[Bounds, Bounds]]] | None:
    """Returns the shard that has all of what each device needs, and the bounds of both.

    None if a device finds no such shard, or the shards cannot be sliced.
    """
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return None
    held = [(shard, _bounds(shard.index, x.shape)) for shard in x.addressable_shards]
    slices = {}
    for device, index in wanted.addressable_devices_indices_map(x.shape).items():
        inner = _bounds(index, x.shape)
        sources = [(shard, (outer, inner)) for shard, outer in held if _contains(outer, inner)]
        if not sources:
            return None
        on_device = [source for source in sources if source[0].device == device]
        slices[device] = (on_device or sources)[0]
    return slices


def _slice(data: jax.Array, outer: Bounds, bounds: Bounds) -> jax.Array:
    """Returns the slice ``bounds`` of a shard that is ``outer``."""
    if outer == bounds:
        return data
    starts = [low - base for (low, _), (base, _) in zip(bounds, outer, strict=True)]
    limits = [high - base for (_, high), (base, _) in zip(bounds, outer, strict=True)]
    return jax.lax.slice(data, starts, limits)


def _bounds(index: tuple[slice, ...] | None, shape: tuple[int, ...]) -> Bounds:
    if index is None:
        return tuple((0, size) for size in shape)
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _contains(outer: Bounds, inner: Bounds) -> bool:
    return all(a <= lo and hi <= b for (a, b), (lo, hi) in zip(outer, inner, strict=True))
