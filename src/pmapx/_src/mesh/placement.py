"""Which devices, which mesh, and moving inputs to them."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, Sharding

from pmapx._src import errors
from pmapx._src.mesh import process_shards

# Set around work of our own, so that a mesh that the user set does not reach it.
NO_MESH = Mesh(np.empty((), dtype=object), ())


def check_devices(
    devices: Sequence[jax.Device], function: str = "pmap", *, may_be_empty: bool = False
) -> tuple[jax.Device, ...]:
    """Returns the devices as a tuple; refuses repeats, and an empty list unless told."""
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
    """Returns the devices to choose from, in the order in which the axis is laid on them."""
    if devices is not None:
        return check_devices(devices)
    # Rows that one process passes lie side by side, also where JAX lists devices by topology.
    return tuple(sorted(jax.devices(backend), key=lambda device: device.process_index))


def make_mesh(devices: Sequence[jax.Device], named_sizes: Sequence[tuple[str, int]]) -> Mesh:
    """Lays devices out as a mesh of automatic axes, the last axis fastest."""
    sizes = tuple(size for _, size in named_sizes)
    chosen = np.empty(math.prod(sizes), dtype=object)
    chosen[:] = process_shards.choose(devices, len(chosen))
    return Mesh(chosen.reshape(sizes), tuple(name for name, _ in named_sizes))


@jax.jit
def _from_nothing() -> jax.Array:
    return jnp.zeros((), bool)


def context_mesh() -> Mesh | None:
    """Returns the mesh that ``jax.set_mesh`` put around the call or the trace, if any."""
    if jax.sharding.get_abstract_mesh().empty:
        return None
    # What is computed from no input lies on the mesh around it, also while tracing.
    with jax.ensure_compile_time_eval():
        sharding = _from_nothing().sharding
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return mesh if isinstance(mesh, Mesh) else None


def mesh_in_types(leaves: Sequence[Any]) -> AbstractMesh | None:
    """Returns the mesh of explicit axes that leaves have in their types, if any."""
    for leaf in leaves:
        mesh = getattr(getattr(jax.typeof(leaf), "sharding", None), "mesh", None)
        if mesh is not None and AxisType.Explicit in mesh.axis_types:
            return mesh
    return None


def on_devices(mesh: AbstractMesh, devices: Sequence[jax.Device]) -> Mesh:
    """Lays a mesh that has no devices on the first ones of ``devices``."""
    chosen = np.array(devices[: mesh.size], dtype=object).reshape(mesh.axis_sizes)
    return Mesh(chosen, mesh.axis_names, axis_types=mesh.axis_types)


def context_of(mesh: Mesh) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which ``mesh`` is set, for a trace of our own."""
    try:
        return jax.set_mesh(mesh)
    except ValueError:  # Inside somebody's trace only the mesh's axes can be set.
        return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def neutral_context() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which no mesh is set; nothing to enter when none is."""
    if jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    return jax.set_mesh(NO_MESH)


def is_placed(x: Any, wanted: Sharding) -> bool:
    """Says whether a program takes ``x`` as it is: uncommitted, from the host, or in place."""
    if not isinstance(x, jax.Array) or not x.committed:
        return True
    found = x.sharding
    return bool(found == wanted or found.is_equivalent_to(wanted, x.ndim))


def reason_to_move(x: jax.Array, wanted: Sharding) -> str:
    """Says why ``x`` is moved, in terms of where it lies."""
    found, needed = x.sharding, wanted.device_set
    count = len(found.device_set)
    if count == 1:
        (device,) = found.device_set
        return f"it is committed to {device}"
    if found.device_set != needed:
        return f"it lies on {count} devices, {found}, not on the {len(needed)} of the map"
    if found.is_fully_replicated:
        return f"it is replicated over the {count} devices, not split along the mapped axis"
    return f"it is split another way, {found}"


def is_move_forbidden() -> bool:
    """Says whether the transfer guard disallows moves between devices that nobody asked for."""
    setting = jax.config.jax_transfer_guard_device_to_device  # type: ignore[attr-defined]
    return str(setting).startswith("disallow")


def move(x: jax.Array, wanted: Sharding) -> jax.Array:
    """Moves ``x`` to ``wanted`` by the cheapest way there is.

    Between the same devices a program does it, which sends only what its device does not have.
    From one device, JAX cuts the array and sends each device its part. From several others, each
    part is sent straight from a device that holds it whole, if there is one.
    """
    with neutral_context():
        devices = x.sharding.device_set
        if devices == wanted.device_set and len(devices) > 1:
            with contextlib.suppress(ValueError):  # One program has its devices in one order.
                return _resharding(wanted)(x)
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return jax.device_put(x, wanted)
        if len(devices) == 1:
            # JAX cannot slice an array of one device whose type has a mesh with Explicit axes.
            with contextlib.suppress(ValueError):
                return jax.device_put(x, wanted)
        return _move_pieces(x, wanted)


@functools.lru_cache(maxsize=256)
def _resharding(wanted: Sharding) -> Any:
    return jax.jit(lambda x: x, out_shardings=wanted)


def _move_pieces(x: jax.Array, wanted: Sharding) -> jax.Array:
    held = [(shard.device, _bounds(shard.index, x.shape), shard.data) for shard in
            x.addressable_shards]  # fmt: skip
    pieces = []
    for device, index in wanted.addressable_devices_indices_map(x.shape).items():
        bounds = _bounds(index, x.shape)
        sources = [entry for entry in held if _contains(entry[1], bounds)]
        if not sources:
            return jax.device_put(x, wanted)
        _, outer, data = next((entry for entry in sources if entry[0] == device), sources[0])
        pieces.append(jax.device_put(_cut(data, outer, bounds), device))
    return jax.make_array_from_single_device_arrays(x.shape, wanted, pieces)


def move_donated(x: jax.Array, wanted: Sharding) -> jax.Array:
    """Moves ``x``, which nobody needs any more, and frees each part of it once that has moved.

    Never more than one part is there twice, unless ``x`` lies whole on a device that has to keep
    it until the last part is cut off.
    """
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        moved = jax.block_until_ready(move(x, wanted))
        x.delete()
        return moved
    held = [(shard.device, _bounds(shard.index, x.shape), shard.data) for shard in
            x.addressable_shards]  # fmt: skip
    needed = {
        device: _bounds(index, x.shape)
        for device, index in wanted.addressable_devices_indices_map(x.shape).items()
    }
    sources: dict[Any, int] = {}
    for device, bounds in needed.items():
        candidates = [k for k, entry in enumerate(held) if _contains(entry[1], bounds)]
        if not candidates:
            moved = jax.block_until_ready(move(x, wanted))
            x.delete()
            return moved
        near = [k for k in candidates if held[k][0] == device]
        sources[device] = (near or candidates)[0]
    pieces = {}
    for source, (_, outer, data) in enumerate(held):
        for device in [d for d, k in sources.items() if k == source]:
            piece = jax.device_put(_cut(data, outer, needed[device]), device, may_alias=False)
            pieces[device] = jax.block_until_ready(piece)
        data.delete()
    return jax.make_array_from_single_device_arrays(
        x.shape, wanted, [pieces[device] for device in needed]
    )


def _cut(data: jax.Array, outer: Bounds, bounds: Bounds) -> jax.Array:
    """Returns the part ``bounds`` of a shard that holds ``outer``."""
    if outer == bounds:
        return data
    starts = [low - base for (low, _), (base, _) in zip(bounds, outer, strict=True)]
    limits = [high - base for (_, high), (base, _) in zip(bounds, outer, strict=True)]
    return jax.lax.slice(data, starts, limits)


Bounds = tuple[tuple[int, int], ...]


def _bounds(index: tuple[slice, ...] | None, shape: tuple[int, ...]) -> Bounds:
    if index is None:
        return tuple((0, size) for size in shape)
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _contains(outer: Bounds, inner: Bounds) -> bool:
    return all(a <= lo and hi <= b for (a, b), (lo, hi) in zip(outer, inner, strict=True))
