"""Ahead-of-time compilation of a mapped function for a target topology.

The shard of a device keeps its shape: the mapped axis grows with the number of devices, and the
batch with it. A pmapped function is mapped again; a jitted one is traced again with its meshes
replaced by meshes of the target devices (``retrace_jit``).
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
from pmapx._src.audit.topology import retrace_jit
from pmapx._src.audit.topology.devices import devices_of
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
class CompiledForTopology:
    """A mapped function compiled for other devices, with the shapes of its arguments there.

    ``axis_sizes`` are the axes of its mesh, in order.
    """

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
) -> CompiledForTopology:
    """Compiles a mapped function ahead of time for a target topology.

    The shard of a device keeps its shape: the mapped axis of an argument grows to the number of
    devices, from 8 to 256 for example, and a dimension that ``shard_map`` shards over 8 devices
    becomes 32 times as large. In a mesh of several axes the first one grows, and in nested pmaps
    the outermost.

    Args:
      mapped: a function of ``pmapx.pmap`` or ``jax.pmap``, or of ``jax.jit`` with a ``shard_map``
        inside.
      args: its arguments here, or their shapes and dtypes; nothing is run.
      topology: the topology's name, as ``devices_of`` takes it; or the devices.
      kwargs: its keyword arguments.
      build: a function that takes the devices and returns the mapped function and its arguments
        for them, in place of ``mapped`` and ``args``.

    >>> import jax, numpy as np, pmapx
    >>> step = pmapx.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
    >>> there = compile_for(step, [np.ones((8, 4), np.float32)], "cpu:1")
    >>> there.args[0].shape, dict(there.axis_sizes)
    ((1, 4), {'i': 1})
    """
    devices = devices_of(topology) if isinstance(topology, str) else tuple(topology)
    named = dict(kwargs or {})
    start = time.perf_counter()
    if build is not None:
        mapped, args = build(devices)
        traced, mesh = _traced(mapped, tuple(args), named)
    elif (programs := programs_of(mapped)) is not None:
        traced, mesh, args, named = _mapped_again(programs, tuple(args), named, devices)
    elif hasattr(mapped, "trace") and hasattr(mapped, "__wrapped__"):
        traced, mesh, args, named = retrace_jit.traced_on(mapped, tuple(args), named, devices)
    else:
        problem = (
            "it is not recognized as a function of pmapx.pmap, jax.jit or jax.pmap (the last from "
            "JAX 0.10 on, or under pmapx.install())"
        )
        raise errors.CannotRebuild(describe.function_name(mapped), problem)
    with jax.set_mesh(mesh):
        lowered = traced.lower()
        compiled = lowered.compile()
    seconds = time.perf_counter() - start
    sizes = dict(mesh.shape)
    return CompiledForTopology(
        devices, tuple(args), named, sizes, traced, lowered, compiled, seconds
    )


def programs_of(mapped: Any) -> ProgramBuilder | None:
    """Returns the programs of a pmapped function; one of ``jax.pmap`` is read as one of pmapx."""
    programs = getattr(mapped, "_pmapx", None)
    if isinstance(programs, ProgramBuilder):
        # A wrapper has its attributes too.
        return programs if programs.user_function() is mapped else None
    options = fastpath.pmap_options(mapped)
    if options is None:
        return None
    read = Options(**options, reshard="allow", oversubscribe=False, compiler_options=None)
    fun, statistics = mapped.__wrapped__, CallStatistics(describe.parameter_names(mapped))
    return ProgramBuilder(fun, read, statistics, unshared(fun))


def _mapped_again(
    programs: ProgramBuilder,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    devices: tuple[jax.Device, ...],
) -> tuple[jax.stages.Traced, Mesh, tuple[Any, ...], dict[str, Any]]:
    """Traces a pmapped function for other devices."""
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
    """Returns the size of the outermost axis on all devices."""
    # Not counted as a trace of the user's function.
    statistics = CallStatistics(programs.parameters)
    programs = ProgramBuilder(programs.fun, programs.options, statistics, programs.cache)
    mapping = programs.resolve(signature)
    leaves = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in signature.leaves]
    with nesting.entered(None):
        paths = nesting.discover(programs.body(signature), mapping.outermost, leaves)
    inner = max((math.prod(size for _, size in path) for path in paths), default=1)
    if device_count % inner:
        raise errors.UnevenTopology(programs.function, inner, device_count)
    elements_a_device = 1
    if programs.options.oversubscribe:
        elements_a_device = max(1, size * inner // len(programs.devices()))
    return elements_a_device * device_count // inner


def _with_size(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _traced(
    mapped: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[jax.stages.Traced, Mesh]:
    programs = programs_of(mapped)
    if programs is not None:
        program, traced = PmapImpl(programs.fun, programs.options).traced(*args, **kwargs)
        return traced, program.mesh
    traced = mapped.trace(*args, **kwargs)
    return traced, retrace_jit.mesh_of(traced, (args, kwargs), describe.function_name(mapped))
