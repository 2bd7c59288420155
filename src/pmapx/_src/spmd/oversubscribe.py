"""More map elements than devices: each device runs several, as a batch.

The map becomes one ``jax.vmap`` whose batch is split over the devices. The batching rules turn
collectives over the axis into operations over the batch, and XLA splits those over the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from pmapx._src import errors
from pmapx._src.mesh import placement, process_shards
from pmapx._src.spmd import axes, nesting
from pmapx._src.spmd.axes import Axis, Mapping
from pmapx._src.spmd.mapped_body import Element, vectorized


def usable_device_count(size: int, available: int) -> int:
    """Returns the largest number of devices that can share ``size`` elements evenly.

    >>> usable_device_count(32, 8), usable_device_count(12, 8), usable_device_count(13, 8)
    (8, 6, 1)
    """
    return next(count for count in range(min(size, available), 0, -1) if size % count == 0)


def _device_count(function: str, size: int, devices: Sequence[jax.Device]) -> int:
    """Returns how many devices to use: as many of each process."""
    if not process_shards.spans_processes(devices):
        return usable_device_count(size, len(devices))
    counts = process_shards.by_process(devices)
    rows, rest = divmod(size, len(counts))
    if rest:
        raise errors.UnevenProcessShards(function, "the global array", size, rows, dict(counts))
    return usable_device_count(rows, min(counts.values())) * len(counts)


def lay_out(
    element: Element, mapping: Mapping, devices: Sequence[jax.Device]
) -> tuple[Mesh, Callable[..., Any]]:
    """Returns the mesh to use, and the map of ``element`` over it."""
    level = mapping.outermost
    used = _device_count(element.function, level.size, devices)
    if used < len(devices):
        argument, _, _ = mapping.describe_size()
        errors.warn(
            errors.UnevenOversubscription(
                element.function, argument, level.size, used, len(devices)
            )
        )
    mesh = placement.make_mesh(devices, [(level.mesh_axis, used)])

    def constrain(leaf: Any, out_axis: Axis) -> Any:
        sharding = NamedSharding(mesh, axes.out_spec([level], [out_axis]))
        return jax.lax.with_sharding_constraint(leaf, sharding)

    # Pmaps inside have no devices left to themselves: they join the batch.
    element = nesting.inside(nesting.Level(level.name), element)
    return mesh, vectorized(element, level, spmd_axis=level.mesh_axis, constrain=constrain)
