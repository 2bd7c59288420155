"""Partitions a mapped body over a mesh: its own, or the context mesh of an enclosing trace."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pmapx._src import errors
from pmapx._src.mesh import device_mesh, process_shards
from pmapx._src.spmd import axes, nesting
from pmapx._src.spmd.axes import Axis, Mapping
from pmapx._src.spmd.mapped_body import Adapt, MappedBody, OutAxes, shard_mapped, vmapped
from pmapx._src.spmd.nesting import Level, NamedSize

InnerAxes = tuple[tuple[NamedSize, str], ...]

# The mesh axis of the devices that a pmap does not need in a program on more devices.
_SPARE = "pmapx_spare"


@dataclasses.dataclass(frozen=True)
class Partitioned:
    """A pmapped function partitioned over a mesh."""

    mesh: Mesh  # Its first axis is the mapped one.
    mapped: Callable[..., Any]  # Of flat leaves, with the mapped axis in arguments and result.
    in_shardings: tuple[NamedSharding | None, ...]  # By leaf; None leaves it to XLA.
    as_shards: bool = False  # ``mapped`` takes and returns shards as replicated arrays.


def partition(
    body: MappedBody,
    mapping: Mapping,
    devices: Sequence[jax.Device],
    inner_axes: InnerAxes | None,
    *,
    may_oversubscribe: bool,
    as_shards: bool = False,
) -> Partitioned:
    """Partitions a mapped body over ``devices``; ``inner_axes=None``: no inner pmap is expected.

    ``as_shards`` asks for a function of per-device shards, where that is possible.
    """
    if mapping.outermost.size > len(devices):
        if not may_oversubscribe:
            described, size = mapping.describe_size(), mapping.outermost.size
            raise errors.NotEnoughDevices(body.function, *described, size, len(devices))
        return _oversubscribed(body, mapping, devices)
    mesh = device_mesh.make_mesh(devices, _named_sizes(mapping, inner_axes))
    if inner_axes and not nesting.can_nest(mesh):
        inner_axes = ()
        mesh = device_mesh.make_mesh(devices, _named_sizes(mapping, ()))
    is_multi_process = process_shards.is_multi_process(list(mesh.devices.flat))
    mapped = shard_mapped(
        _inside(body, mapping, inner_axes, mesh),
        mapping.levels,
        mesh,
        # A process gets all of its shards of the outermost axis, however inner axes shard them.
        adapt=_constrained(mapping, mesh) if inner_axes and is_multi_process else None,
        as_shards=as_shards and not inner_axes,
    )
    if inner_axes and not is_multi_process:
        # XLA chooses which dimensions the inner axes shard, so that it needs no collectives.
        return Partitioned(mesh, mapped, (None,) * len(mapping.leaves))
    in_shardings = _in_shardings(mesh, mapping)
    return Partitioned(mesh, mapped, in_shardings, as_shards=as_shards and not inner_axes)


def _constrained(mapping: Mapping, mesh: Mesh) -> Adapt:
    """Constrains the outputs to be sharded over the mapped axes of ``mesh`` alone."""

    def adapt(program: Callable[..., Any], out_axes: OutAxes) -> Callable[..., Any]:
        def constrained(*leaves: Any) -> Any:
            results = program(*leaves)
            specs = [axes.out_spec(mapping.levels, leaf_axes) for leaf_axes in out_axes]
            return [
                jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
                for x, spec in zip(results, specs, strict=True)
            ]

        return constrained

    return adapt


def has_axis_of(context: Mesh, mapping: Mapping) -> bool:
    """Whether a mesh has the mapped axis by name and size, and other axes too."""
    outermost = mapping.outermost
    return (
        context.shape.get(outermost.mesh_axis) == outermost.size
        and len(context.axis_names) > 1
        and len(mapping.levels) == 1
    )


def partition_along(body: MappedBody, mapping: Mapping, context: Mesh) -> Partitioned:
    """Partitions a mapped body along its axis of a context mesh; inner pmaps use the others."""
    axis = mapping.outermost.mesh_axis
    free = tuple(((name, size), name) for name, size in context.shape.items() if name != axis)
    mapped = shard_mapped(_inside(body, mapping, free, context), mapping.levels, context)
    return Partitioned(context, mapped, _in_shardings(context, mapping))


def map_in_context(
    body: MappedBody, mapping: Mapping, context: Mesh, inner_axes: InnerAxes | None
) -> Callable[..., Any]:
    """Maps a body while an enclosing ``jit`` is traced under the mesh ``context``.

    A program has one set of devices, those of that mesh, here under axis names of our own. A mapped
    axis whose size divides their number is replicated over the rest; any other runs as a batch.
    """
    named_sizes = _named_sizes(mapping, inner_axes)
    is_explicit = AxisType.Explicit in context.axis_types

    if has_axis_of(context, mapping) and not is_explicit:
        return partition_along(body, mapping, context).mapped
    spare, rest = divmod(context.size, math.prod(size for _, size in named_sizes))
    if rest or (spare > 1 and (is_explicit or inner_axes)):
        if len(mapping.levels) > 1:
            raise nesting.InnerPmapMet  # As a batch, each pmap is mapped by itself.
        body = nesting.inside(Level(mapping.outermost.name), body)
        mapped = vmapped(body, mapping.outermost)
        # Explicit axes are in the types of arrays; a batch needs automatic ones.
        return (
            jax.sharding.auto_axes(mapped, out_sharding=PartitionSpec()) if is_explicit else mapped
        )

    spare_axes = [(_SPARE, spare)] if spare > 1 else []
    mesh = device_mesh.make_mesh(list(context.devices.flat), named_sizes + spare_axes)
    if inner_axes and not nesting.can_nest(mesh, context):
        return map_in_context(body, mapping, context, ())

    def adapt(program: Callable[..., Any], out_axes: OutAxes) -> Callable[..., Any]:
        def on_our_axes(*leaves: Any) -> Any:
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return program(*leaves)

        def replicated_around(*leaves: Any) -> Any:
            return _replicated(on_our_axes(*_replicated(leaves)))

        # JAX reads the shardings that XLA chooses as those of one mesh of the program.
        can_be_read = mesh.devices.shape in (context.devices.shape, (mesh.size,))
        on_context = on_our_axes if can_be_read else replicated_around
        if not is_explicit:
            return on_context
        explicit = tuple(
            name
            for name, kind in zip(context.axis_names, context.axis_types, strict=True)
            if kind == AxisType.Explicit
        )
        # Filled by the trace, as those of the shard_map are.
        out_specs: list[PartitionSpec] = []

        def with_out_specs(*leaves: Any) -> Any:
            results = on_context(*leaves)
            out_specs[:] = [
                PartitionSpec() if len(named_sizes) > 1 or out_axis is None
                else PartitionSpec(*[None] * out_axis, explicit)
                for out_axis, *_ in out_axes
            ]  # fmt: skip
            return results

        return jax.sharding.auto_axes(with_out_specs, out_sharding=out_specs)

    return shard_mapped(
        _inside(body, mapping, inner_axes, mesh),
        mapping.levels,
        mesh,
        adapt=adapt,
        replicated_over=[name for name, _ in spare_axes],
    )


def _replicated(tree: Any) -> Any:
    return jax.lax.with_sharding_constraint(tree, PartitionSpec())


def _named_sizes(mapping: Mapping, inner_axes: InnerAxes | None) -> list[tuple[str, int]]:
    mapped = [(level.mesh_axis, level.size) for level in mapping.levels]
    return mapped + [(name, size) for (_, size), name in inner_axes or ()]


def _inside(
    body: MappedBody, mapping: Mapping, inner_axes: InnerAxes | None, mesh: Mesh
) -> MappedBody:
    level = Level(
        mapping.outermost.name, free=inner_axes or (), mesh=mesh, is_flat=inner_axes is None
    )
    return nesting.inside(level, body)


def _in_shardings(mesh: Mesh, mapping: Mapping) -> tuple[NamedSharding, ...]:
    specs = mapping.in_specs()
    # Equal shardings share one object: JAX converts each new one.
    shardings = {spec: NamedSharding(mesh, spec) for spec in set(specs)}
    return tuple(shardings[spec] for spec in specs)


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


def _oversubscribed(
    body: MappedBody, mapping: Mapping, devices: Sequence[jax.Device]
) -> Partitioned:
    """Partitions a mapped axis larger than the number of devices: each runs a batch.

    The pmap becomes one ``jax.vmap`` whose batch is sharded over the devices. The batching rules
    turn collectives over the axis into operations over the batch, and XLA partitions those.
    """
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
    mapped = vmapped(body, level, spmd_axis=level.mesh_axis, constrain=constrain)
    return Partitioned(mesh, mapped, _in_shardings(mesh, mapping))
