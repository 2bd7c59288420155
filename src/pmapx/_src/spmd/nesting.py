"""A pmap that is called while another one is traced.

The outermost pmap needs the sizes of the inner ones to make its mesh. So it is traced for a flat
mesh first; an inner pmap found there ends that trace with ``InnerPmapMet``, the sizes are found by
an abstract trace in which every mapped body runs once (``discover``), and the program is traced for
a mesh that has axes for all.

The pmaps that are being traced form a stack of levels, one stack per thread.
"""

import contextlib
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from pmapx._src import errors
from pmapx._src.spmd import axis_names
from pmapx._src.spmd.axes import Axis, MappedAxis
from pmapx._src.spmd.mapped_body import MappedBody, abstractly_mapped, shard_mapped, vmapped

NamedSize = tuple[Hashable | None, int]


class InnerPmapMet(BaseException):
    """Ends the trace for a flat mesh; no user code should catch it, hence no Exception."""


@dataclasses.dataclass
class Level:
    """A pmap that is being traced, as an inner one needs to know it."""

    axis_name: Hashable | None
    depth: int = 0  # How many pmaps are around it.
    free: tuple[tuple[NamedSize, str], ...] = ()  # Mesh axes left for inner pmaps, by named size.
    mesh: Mesh | None = None  # The mesh of those axes; None: the context's.
    is_flat: bool = False  # No inner pmap was expected: meeting one ends the trace.
    path: tuple[NamedSize, ...] = ()  # From the outermost pmap to here, while discovering sizes.
    found: list[tuple[NamedSize, ...]] | None = None  # The discovered paths, while discovering.
    was_met: bool = False  # An inner pmap was met though none was expected.


class _Stack(threading.local):
    def __init__(self) -> None:
        self.levels: list[Level] = []


_stack = _Stack()


def current_level() -> Level | None:
    """Returns the innermost pmap that this thread is tracing."""
    return _stack.levels[-1] if _stack.levels else None


@contextlib.contextmanager
def entered(level: Level | None) -> Iterator[None]:
    """Makes ``level`` the innermost one; None hides all levels from a separate program."""
    saved = _stack.levels
    _stack.levels = [] if level is None else [*saved, level]
    try:
        yield
    finally:
        _stack.levels = saved


def inside(level: Level, body: MappedBody) -> MappedBody:
    """Returns ``body``, traced with ``level`` as the innermost one."""
    return dataclasses.replace(body, scope=functools.partial(_body_of, level))


@contextlib.contextmanager
def _body_of(level: Level) -> Iterator[None]:
    level.was_met = False
    with entered(level):
        yield
    if level.was_met:
        raise InnerPmapMet  # Again: the body caught everything, and went another way.


def map_inner(level: Level, body: MappedBody, axis: MappedAxis) -> Callable[..., Any]:
    """Maps the body of a pmap inside ``level``, over a free mesh axis if there is one."""
    if level.is_flat:
        level.was_met = True
        raise InnerPmapMet
    depth = level.depth + 1
    if level.found is not None:
        path = (*level.path, (axis.name, axis.size))
        level.found.append(path)
        inner = Level(axis.name, depth, path=path, found=level.found)
        return abstractly_mapped(inside(inner, body), axis)
    for named_size, mesh_axis in level.free:
        if named_size == (axis.name, axis.size):
            free = tuple(entry for entry in level.free if entry[1] != mesh_axis)
            inner = Level(axis.name, depth, free, mesh=level.mesh)
            axis = dataclasses.replace(axis, mesh_axis=mesh_axis)
            mapped = shard_mapped(inside(inner, body), [axis], _as_in_context(level.mesh))
            return _or_as_batch(mapped, inside(Level(axis.name, depth), body), axis)
    return vmapped(inside(Level(axis.name, depth), body), axis)


def _or_as_batch(
    mapped: Callable[..., Any], body: MappedBody, axis: MappedAxis
) -> Callable[..., Any]:
    """Returns ``mapped``, or if its body closes over values of the outer body, a batch.

    JAX does not let a nested ``shard_map`` close over such values. A batch may, and it is sharded
    over the same mesh axis; how to partition its collectives is then XLA's choice.
    """

    def constrain(leaf: Any, mapped_axis: Axis) -> Any:
        spec = P() if mapped_axis is None else P(*[None] * mapped_axis, axis.mesh_axis)
        return jax.lax.with_sharding_constraint(leaf, spec)

    def mapped_or_batched(*leaves: Any) -> Any:
        try:
            return mapped(*leaves)
        except ValueError as error:
            if "should match the aval mesh" not in str(error):
                raise
        placed = [
            leaf if in_axis is None else constrain(leaf, in_axis)
            for leaf, in_axis in zip(leaves, axis.in_axes, strict=True)
        ]
        return vmapped(body, axis, spmd_axis=axis.mesh_axis, constrain=constrain)(*placed)

    return mapped_or_batched


def _as_in_context(mesh: Mesh | None) -> Mesh | None:
    """Returns ``mesh`` with the axis types that it has here, inside a pmap over its other axes.

    Without its devices, the program would be lowered for those of a mesh set around the call.
    """
    if mesh is None:
        return None
    context = jax.sharding.get_abstract_mesh()
    return Mesh(mesh.devices, mesh.axis_names, axis_types=context.axis_types)


def discover(
    body: MappedBody, axis: MappedAxis, leaves: Sequence[jax.ShapeDtypeStruct]
) -> list[tuple[NamedSize, ...]]:
    """Returns the paths of named sizes of all pmaps inside, without the outermost."""
    found: list[tuple[NamedSize, ...]] = []
    body = inside(Level(axis.name, found=found), body)
    jax.eval_shape(abstractly_mapped(body, axis), *leaves)
    return found


def _device_count(path: Sequence[NamedSize]) -> int:
    return math.prod(size for _, size in path)


def choose_inner_axes(
    function: str,
    outermost: NamedSize,
    paths: Sequence[tuple[NamedSize, ...]],
    available: int,
    *,
    may_oversubscribe: bool,
    were_passed: bool = False,
) -> tuple[tuple[NamedSize, str], ...]:
    """Chooses the mesh axes for inner pmaps: those of the path that uses most devices.

    Inner pmaps that do not fit them run as a batch on the devices of the pmap around them.
    """
    chosen: tuple[tuple[NamedSize, str], ...] = ()
    for path in sorted(paths, key=_device_count, reverse=True):
        total = outermost[1] * _device_count(path)
        if total > available:
            if may_oversubscribe:
                continue
            nested = (outermost, *path)
            raise errors.NestingTooLarge(function, nested, available, were_passed=were_passed)
        names = [
            axis_names.mesh_axis_name(name, depth)
            for depth, (name, _) in enumerate((outermost, *path))
        ]
        if len(set(names)) < len(names):
            continue  # An inner axis hides an outer one of its name; a mesh cannot.
        if total > math.prod([outermost[1], *(size for (_, size), _ in chosen)]):
            chosen = tuple(zip(path, names[1:], strict=True))
    return chosen


@functools.cache
def can_nest(mesh: Mesh, context: Mesh | None = None) -> bool:
    """Whether this release can run a ``shard_map`` over one axis of ``mesh`` inside another.

    Releases before 0.10 cannot lower ``axis_index`` there, nor can later ones while another mesh,
    ``context``, is set; inner pmaps then run as a batch.
    """
    # In a separate thread, away from a context mesh or a trace that is under way.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_nests, mesh, context).result()


def _nests(mesh: Mesh, context: Mesh | None) -> bool:
    outer, *others = mesh.axis_names
    inner = functools.partial(jax.shard_map, check_vma=False, in_specs=P(), out_specs=P())
    program = inner(
        inner(lambda x: x + jax.lax.axis_index(outer), axis_names=set(others)),
        mesh=mesh,
        axis_names={outer},
    )
    around = contextlib.nullcontext() if context is None else jax.set_mesh(context)
    try:
        with around, jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            jax.jit(program).lower(jax.ShapeDtypeStruct((), "int32"))
    except (ValueError, NameError):
        return False
    return True


def level_from_context() -> Level | None:
    """Returns a level for the body of the user's ``shard_map`` that is being traced, if any."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or AxisType.Manual not in mesh.axis_types:
        return None
    free = tuple(
        ((name, size), name)
        for name, size, kind in zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
        if kind != AxisType.Manual
    )
    return Level(None, free=free)
