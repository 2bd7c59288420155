"""The devices of a pmap, and its mesh."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from pmapx._src import errors
from pmapx._src.mesh import process_shards


def check_devices(
    devices: Sequence[jax.Device], function: str = "pmap", *, may_be_empty: bool = False
) -> tuple[jax.Device, ...]:
    """Returns the devices as a tuple; refuses repeats, and an empty list by default."""
    flat = isinstance(devices, list | tuple)
    listed = tuple(devices if flat else np.ravel(np.asarray(devices, dtype=object)))
    if not listed and not may_be_empty:
        raise errors.NoDevices(function)
    if not all(isinstance(device, jax.Device) for device in listed):
        raise errors.UnknownOption("devices", devices, "a sequence of jax.Device", function)
    if len(set(listed)) < len(listed):
        repeated = next(device for device in listed if listed.count(device) > 1)
        positions = [index for index, device in enumerate(listed) if device == repeated]
        raise errors.RepeatedDevice(repeated, positions, function)
    return listed


def candidate_devices(
    devices: tuple[jax.Device, ...] | None, backend: str | None
) -> tuple[jax.Device, ...]:
    """Returns the devices to choose from, in the order of the mapped axis."""
    if devices is not None:
        return check_devices(devices)
    # A process's shards are adjacent, also where JAX lists devices by topology.
    return tuple(sorted(jax.devices(backend), key=lambda device: device.process_index))


def make_mesh(devices: Sequence[jax.Device], named_sizes: Sequence[tuple[str, int]]) -> Mesh:
    """Returns a mesh of automatic axes over the first devices, the last axis fastest."""
    sizes = tuple(size for _, size in named_sizes)
    chosen = process_shards.choose(devices, math.prod(sizes))
    return Mesh(grid(chosen, sizes), tuple(name for name, _ in named_sizes))


def on_devices(mesh: AbstractMesh, devices: Sequence[jax.Device]) -> Mesh:
    """Returns an abstract mesh as one over the first of ``devices``."""
    chosen = grid(devices[: mesh.size], mesh.axis_sizes)
    return Mesh(chosen, mesh.axis_names, axis_types=mesh.axis_types)


def grid(devices: Sequence[jax.Device], shape: Sequence[int]) -> np.ndarray:
    """Returns devices as an array of a shape, the last axis fastest."""
    chosen = np.empty(len(devices), dtype=object)
    chosen[:] = devices
    return chosen.reshape(shape)
