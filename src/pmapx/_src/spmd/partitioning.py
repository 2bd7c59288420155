"""How a map is laid out: on a mesh of its own, or on the mesh that is there while tracing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pmapx._src import errors
from pmapx._src.mesh import placement, process_shards
from pmapx._src.spmd import axes, nesting, oversubscribe
from pmapx._src.spmd.axes import Axis, Mapping
from pmapx._src.spmd.mapped_body import Element, over_devices, vectorized
from pmapx._src.spmd.nesting import Level, NamedSize

InnerAxes = tuple[tuple[NamedSize, str], ...]

# The mesh axis of the devices that a map leaves over in a program of more devices.
_SPARE = "pmapx_spare"


@dataclasses.dataclass(frozen=True)
class Layout:
    """A map laid out on devices.

    Attributes:
      mesh: the mesh; its first axis is the mapped one.
      mapped: the whole map over flat leaves, arguments and result as the user has them.
      in_shardings: where each leaf has to lie; None leaves that to XLA.
      as_shards: ``mapped`` takes and gives what each device holds as if it were the whole array.
    """

    mesh: Mesh
    mapped: Callable[..., Any]
    in_shardings: tuple[NamedSharding | None, ...]
    as_shards: bool = False


def lay_out(
    element: Element,
    mapping: Mapping,
    devices: Sequence[jax.Device],
    inner_axes: InnerAxes | None,
    *,
    may_oversubscribe: bool,
    as_shards: bool = False,
) -> Layout:
    """Lays ``mapping`` out on ``devices``; ``inner_axes=None``: no pmap inside is expected.

    ``as_shards`` asks for a map of what each device holds, where there is one.
    """
    if mapping.outermost.size > len(devices):
        if not may_oversubscribe:
            raise errors.NotEnoughDevices(
                element.function,
                *mapping.describe_size(),
                mapping.outermost.size,
                len(devices),
            )
        mesh, mapped = oversubscribe.lay_out(element, mapping, devices)
        return Layout(mesh, mapped, _in_shardings(mesh, mapping))
    mesh = placement.make_mesh(devices, _named_sizes(mapping, inner_axes))
    if inner_axes and not nesting.can_nest(mesh):
        inner_axes = ()
        mesh = placement.make_mesh(devices, _named_sizes(mapping, ()))
    spans = process_shards.spans_processes(list(mesh.devices.flat))
    mapped = over_devices(
        _inside(element, mapping, inner_axes, mesh),
        mapping.levels,
        mesh,
        # A process gets whole rows, whatever the inner axes split.
        adapt=_pinned(mapping, mesh) if inner_axes and spans else None,
        as_shards=as_shards and not inner_axes,
    )
    if inner_axes and not spans:
        # XLA knows best which dimensions the inner axes split; it finds no collective for that.
        return Layout(mesh, mapped, (None,) * len(mapping.leaves))
    in_shardings = _in_shardings(mesh, mapping)
    return Layout(mesh, mapped, in_shardings, as_shards=as_shards and not inner_axes)


def _pinned(mapping: Mapping, mesh: Mesh) -> Callable[..., Callable[..., Any]]:
    """Returns what pins the outputs of a map to the rows of ``mesh``."""

    def adapt(
        program: Callable[..., Any], group_axes: Sequence[tuple[Axis, ...]]
    ) -> Callable[..., Any]:
        specs = [axes.out_spec(mapping.levels, out_axes) for out_axes in group_axes]

        def pinned(*leaves: Any) -> Any:
            return [
                [jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec)) for x in group]
                for group, spec in zip(program(*leaves), specs, strict=True)
            ]

        return pinned

    return adapt


def has_room_around(mapping: Mapping, context: Mesh) -> bool:
    """Says whether a mesh has the mapped axis by name and size, and further axes beside it."""
    outermost = mapping.outermost
    return (
        context.shape.get(outermost.mesh_axis) == outermost.size
        and len(context.axis_names) > 1
        and len(mapping.levels) == 1
    )


def lay_out_along(element: Element, mapping: Mapping, context: Mesh) -> Layout:
    """Lays ``mapping`` out along its axis of somebody's mesh, the other axes free for inside."""
    axis = mapping.outermost.mesh_axis
    free = tuple(((name, size), name) for name, size in context.shape.items() if name != axis)
    mapped = over_devices(_inside(element, mapping, free, context), mapping.levels, context)
    return Layout(context, mapped, _in_shardings(context, mapping))


def lay_out_in_context(
    element: Element, mapping: Mapping, context: Mesh, inner_axes: InnerAxes | None
) -> Callable[..., Any]:
    """Lays ``mapping`` out while somebody's ``jit`` is traced under the mesh ``context``.

    The devices are then that mesh's, whatever they are, seen along axes of our own, since one
    program has one set of devices. A map whose size divides theirs is replicated over the rest; one
    of another size runs as a batch.
    """
    named_sizes = _named_sizes(mapping, inner_axes)
    is_explicit = AxisType.Explicit in context.axis_types

    if has_room_around(mapping, context) and not is_explicit:
        return lay_out_along(element, mapping, context).mapped
    spare, rest = divmod(context.size, math.prod(size for _, size in named_sizes))
    if rest or (spare > 1 and (is_explicit or inner_axes)):
        if len(mapping.levels) > 1:
            raise nesting.InnerPmapMet  # As a batch, each pmap is mapped in its own turn.
        element = nesting.inside(Level(mapping.outermost.name), element)
        mapped = vectorized(element, mapping.outermost)
        # Explicit axes are in the types of arrays; a batch needs them out of its way.
        return (
            jax.sharding.auto_axes(mapped, out_sharding=PartitionSpec()) if is_explicit else mapped
        )

    spare_axes = [(_SPARE, spare)] if spare > 1 else []
    mesh = placement.make_mesh(list(context.devices.flat), named_sizes + spare_axes)
    if inner_axes and not nesting.can_nest(mesh, context):
        return lay_out_in_context(element, mapping, context, ())

    def adapt(
        program: Callable[..., Any], group_axes: Sequence[tuple[Axis, ...]]
    ) -> Callable[..., Any]:
        def on_our_axes(*leaves: Any) -> Any:
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return program(*leaves)

        def replicated_around(*leaves: Any) -> Any:
            return _replicated(on_our_axes(*_replicated(leaves)))

        # JAX reads the shardings that XLA chooses as those of one mesh of the program.
        can_be_read = mesh.devices.shape in (context.devices.shape, (mesh.size,))
        whole = on_our_axes if can_be_read else replicated_around
        if not is_explicit:
            return whole
        explicit = tuple(
            name
            for name, kind in zip(context.axis_names, context.axis_types, strict=True)
            if kind == AxisType.Explicit
        )
        out_specs = [
            PartitionSpec() if len(named_sizes) > 1 or out_axis is None
            else PartitionSpec(*[None] * out_axis, explicit)
            for out_axis, *_ in group_axes
        ]  # fmt: skip
        return jax.sharding.auto_axes(whole, out_sharding=out_specs)

    element = _inside(element, mapping, inner_axes, mesh)
    return over_devices(
        element,
        mapping.levels,
        mesh,
        adapt=adapt,
        replicated_over=[name for name, _ in spare_axes],
    )


def _replicated(tree: Any) -> Any:
    """Constrains what is traced to be replicated over the mesh of the context."""
    return jax.lax.with_sharding_constraint(tree, PartitionSpec())


def _named_sizes(mapping: Mapping, inner_axes: InnerAxes | None) -> list[tuple[str, int]]:
    mapped = [(level.mesh_axis, level.size) for level in mapping.levels]
    return mapped + [(name, size) for (_, size), name in inner_axes or ()]


def _inside(
    element: Element, mapping: Mapping, inner_axes: InnerAxes | None, mesh: Mesh
) -> Element:
    level = Level(
        mapping.outermost.name, free=inner_axes or (), mesh=mesh, is_flat=inner_axes is None
    )
    return nesting.inside(level, element)


def _in_shardings(mesh: Mesh, mapping: Mapping) -> tuple[NamedSharding, ...]:
    specs = mapping.in_specs()
    # One object for all that are equal: JAX converts each sharding that is new to it.
    shardings = {spec: NamedSharding(mesh, spec) for spec in set(specs)}
    return tuple(shardings[spec] for spec in specs)
