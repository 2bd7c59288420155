"""A mapped function built again for other devices, and compiled for them.

What each device holds stays as it is: the mapped axis grows with the number of devices, and the
batch with it. A function of ``pmap`` is mapped again; one of ``jax.jit`` is traced again with its
meshes laid on the other devices (``audit.meshes``).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from pmapx._src import errors, fastpath
from pmapx._src.audit.topology import jit_on_topology
from pmapx._src.audit.topology.target import devices_of
from pmapx._src.map.cache_info import CallStatistics
from pmapx._src.map.options import Options
from pmapx._src.map.pmap import PmapImpl
from pmapx._src.map.program_builder import ProgramBuilder
from pmapx._src.map.program_cache import unshared
from pmapx._src.spmd import axes, nesting
from pmapx._src.trees import names as describe
from pmapx._src.trees.signature import Reader, Signature

Build = Callable[[Sequence[jax.Device]], tuple[Any, Sequence[Any]]]


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """A mapped function, compiled for devices that may not be there.

    Attributes:
      topology: the name of the topology; None when devices were given.
      devices: the devices that it is compiled for.
      args: the shapes and types of its arguments there.
      kwargs: those of its keyword arguments.
      axis_sizes: the axes of its mesh, in order, by name.
      traced: its trace, with ``traced.jaxpr``.
      lowered: what was lowered from that.
      compiled: what was compiled from that, with ``as_text`` and ``memory_analysis``.
      compile_seconds: how long lowering and compiling took.
    """

    topology: str | None
    devices: tuple[jax.Device, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    axis_sizes: Mapping[str, int]
    traced: jax.stages.Traced
    lowered: jax.stages.Lowered
    compiled: jax.stages.Compiled
    compile_seconds: float


def compile_for(
    mapped: Any,
    args: Sequence[Any],
    topology: str | Sequence[jax.Device],
    *,
    kwargs: Mapping[str, Any] | None = None,
    build: Build | None = None,
) -> Elsewhere:
    """Compiles a mapped function for a topology, on a machine that has none of its devices.

    What each device holds stays the same: an argument's mapped axis grows from the size that it
    has to the number of devices, so 8 rows become 256, and a dimension that ``shard_map`` splits
    over 8 devices becomes 32 times as large. In a mesh of several axes the first one grows, and
    in nested pmaps the outermost.

    Args:
      mapped: a function of ``pmapx.pmap`` or ``jax.pmap``, or of ``jax.jit`` with a ``shard_map``
        inside.
      args: its arguments as it takes them here, or their shapes and types; nothing is run.
      topology: the topology's name, as ``devices_of`` takes it; or the devices.
      kwargs: its keyword arguments.
      build: a function that takes the devices and returns the mapped function and its arguments
        for them; in place of ``mapped`` and ``args``, which may then be None and empty.

    >>> import jax, numpy as np, pmapx
    >>> step = pmapx.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
    >>> there = compile_for(step, [np.ones((8, 4), np.float32)], "cpu:1")
    >>> there.args[0].shape, dict(there.axis_sizes)
    ((1, 4), {'i': 1})
    """
    name = topology if isinstance(topology, str) else None
    devices = devices_of(topology) if isinstance(topology, str) else tuple(topology)
    named = dict(kwargs or {})
    start = time.perf_counter()
    if build is not None:
        mapped, args = build(devices)
        traced, mesh = _traced(mapped, tuple(args), named)
    elif (programs := programs_of(mapped)) is not None:
        traced, mesh, args, named = _mapped_again(programs, tuple(args), named, devices)
    elif hasattr(mapped, "trace") and hasattr(mapped, "__wrapped__"):
        traced, mesh, args, named = jit_on_topology.traced_on(mapped, tuple(args), named, devices)
    else:
        problem = (
            "it does not show as one of pmapx.pmap, jax.jit or jax.pmap (whose functions show from "
            "JAX 0.10 on, or under pmapx.install())"
        )
        raise errors.CannotRebuild(describe.function_name(mapped), problem)
    with jax.set_mesh(mesh):
        lowered = traced.lower()
        compiled = lowered.compile()
    seconds = time.perf_counter() - start
    sizes = dict(mesh.shape)
    return Elsewhere(name, devices, tuple(args), named, sizes, traced, lowered, compiled, seconds)


def programs_of(mapped: Any) -> ProgramBuilder | None:
    """Returns what pmapx knows of a mapped function; that of ``jax.pmap`` is read as one."""
    programs = getattr(mapped, "_pmapx", None)
    if isinstance(programs, ProgramBuilder):
        # A wrapper of it has its attributes, but does something else.
        return programs if programs.user_function() is mapped else None
    options = fastpath.pmap_options(mapped)
    if options is None:
        return None
    told = Options(**options, reshard="allow", oversubscribe=False, compiler_options=None)
    fun, statistics = mapped.__wrapped__, CallStatistics(describe.parameter_names(mapped))
    return ProgramBuilder(fun, told, statistics, unshared(fun))


def _mapped_again(
    programs: ProgramBuilder,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    devices: tuple[jax.Device, ...],
) -> tuple[jax.stages.Traced, Mesh, tuple[Any, ...], dict[str, Any]]:
    """Traces a function of pmap for other devices, with its arguments grown to them."""
    options = programs.options
    reader = Reader(programs.function, programs.parameters, options.static_argnums)
    call = reader.read(args, kwargs)
    in_axes, names = programs.in_axes(call.signature)
    size, _ = axes.mapped_axis_size(in_axes, call.signature.leaves, names, options.axis_size)
    count = _outer_size(programs, call.signature, size, len(devices))
    leaves = [
        jax.ShapeDtypeStruct(
            leaf.shape if axis is None else _with_size(leaf.shape, axis, count),
            leaf.dtype,
            weak_type=leaf.weak_type,
        )
        for leaf, axis in zip(call.signature.leaves, in_axes, strict=True)
    ]
    dynamic, named = jax.tree.unflatten(call.signature.tree, leaves)
    positional = list(args)
    for position, value in zip(call.signature.positions, dynamic, strict=True):
        positional[position] = value
    there = dataclasses.replace(
        options, devices=devices, backend=None, axis_size=options.axis_size and count
    )
    program, traced = PmapImpl(programs.fun, there).traced(*positional, **named)
    return traced, program.mesh, tuple(positional), named


def _outer_size(
    programs: ProgramBuilder, signature: Signature, size: int, device_count: int
) -> int:
    """Returns the size of the outermost axis that uses all devices, as many rows on each."""
    # What is only looked at is not to be counted as a trace of the user's.
    statistics = CallStatistics(programs.parameters)
    programs = ProgramBuilder(programs.fun, programs.options, statistics, programs.cache)
    mapping = programs.resolve(signature)
    leaves = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in signature.leaves]
    with nesting.entered(None):
        paths = nesting.discover(programs.body(signature), mapping.outermost, leaves)
    inner = max((math.prod(size for _, size in path) for path in paths), default=1)
    if device_count % inner:
        raise errors.UnevenTopology(programs.function, inner, device_count)
    rows = 1
    if programs.options.oversubscribe:
        rows = max(1, size * inner // len(programs.devices()))
    return rows * device_count // inner


def _with_size(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _traced(
    mapped: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[jax.stages.Traced, Mesh]:
    """Traces a function that was built for its devices."""
    programs = programs_of(mapped)
    if programs is not None:
        program, traced = PmapImpl(programs.fun, programs.options).traced(*args, **kwargs)
        return traced, program.mesh
    traced = mapped.trace(*args, **kwargs)
    return traced, jit_on_topology.mesh_of(traced, (args, kwargs), describe.function_name(mapped))
