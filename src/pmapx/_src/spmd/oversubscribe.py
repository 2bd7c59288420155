"""A mapped axis larger than the number of devices: each device runs a batch.

The pmap becomes one ``jax.vmap`` whose batch is sharded over the devices. The batching rules turn
collectives over the axis into operations over the batch, and XLA partitions those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from pmapx._src import errors
from pmapx._src.mesh import device_mesh, process_shards
from pmapx._src.spmd import axes, nesting
from pmapx._src.spmd.axes import Axis, Mapping
from pmapx._src.spmd.mapped_body import MappedBody, vmapped


def usable_device_count(size: int, available: int) -> int:
    """Returns the largest number of devices that divides ``size``.

    >>> usable_device_count(32, 8), usable_device_count(12, 8), usable_device_count(13, 8)
    (8, 6, 1)
    """
    return next(count for count in range(min(size, available), 0, -1) if size % count == 0)


def _device_count(function: str, size: int, devices: Sequence[jax.Device]) -> int:
    """Returns how many devices to use, equally many of each process."""
    if not process_shards.is_multi_process(devices):
        return usable_device_count(size, len(devices))
    counts = process_shards.by_process(devices)
    local_size, rest = divmod(size, len(counts))
    if rest:
        raise errors.UnevenProcessShards(
            function, "the global array", size, local_size, dict(counts)
        )
    return usable_device_count(local_size, min(counts.values())) * len(counts)


def partition(
    body: MappedBody, mapping: Mapping, devices: Sequence[jax.Device]
) -> tuple[Mesh, Callable[..., Any]]:
    level = mapping.outermost
    used = _device_count(body.function, level.size, devices)
    if used < len(devices):
        argument, _, _ = mapping.describe_size()
        errors.warn(
            errors.UnevenOversubscription(body.function, argument, level.size, used, len(devices))
        )
    mesh = device_mesh.make_mesh(devices, [(level.mesh_axis, used)])

    def constrain(leaf: Any, out_axis: Axis) -> Any:
        sharding = NamedSharding(mesh, axes.out_spec([level], [out_axis]))
        return jax.lax.with_sharding_constraint(leaf, sharding)

    # No devices are left for pmaps inside: they join the batch.
    body = nesting.inside(nesting.Level(level.name), body)
    return mesh, vmapped(body, level, spmd_axis=level.mesh_axis, constrain=constrain)
