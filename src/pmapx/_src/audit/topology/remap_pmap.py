"""A pmapped function mapped again, over other devices."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax

from pmapx._src import errors, fastpath
from pmapx._src.audit import donation
from pmapx._src.audit.topology.growing_arguments import Given, Scale, exponents_of
from pmapx._src.audit.topology.retraced import Retraced, divided, explained, grown_names, grown_size
from pmapx._src.map.cache_info import CallStatistics
from pmapx._src.map.options import Options
from pmapx._src.map.pmap import PmapImpl
from pmapx._src.map.program import Program
from pmapx._src.map.program_builder import ProgramBuilder, builder_of
from pmapx._src.map.program_cache import unshared
from pmapx._src.pages.formatting import is_part
from pmapx._src.spmd import axes, nesting
from pmapx._src.trees import names as describe
from pmapx._src.trees.signature import Call, Signature


def programs_of(mapped: Any) -> ProgramBuilder | None:
    """Returns the programs of a pmapped function; one of ``jax.pmap`` is read as one of pmapx."""
    options = fastpath.pmap_options(mapped)
    if options is None:
        return builder_of(mapped)
    read = Options(**options, reshard="allow", oversubscribe=False, compiler_options=None)
    fun, statistics = mapped.__wrapped__, CallStatistics(describe.parameter_names(mapped))
    return ProgramBuilder(fun, read, statistics, unshared(fun))


def traced_on(
    programs: ProgramBuilder,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    devices: tuple[jax.Device, ...],
    scale: Scale | None,
) -> Retraced:
    """Traces a pmapped function for other devices."""
    options = programs.options
    call = programs.reader.read(args, kwargs)
    signature = call.signature
    in_axes, names = programs.in_axes(signature)
    size, _ = axes.mapped_axis_size(in_axes, signature.leaves, names, options.axis_size)
    count = _outer_size(programs, signature, size, len(devices))
    paths = describe.leaf_paths((call.args, call.kwargs), signature.positions, programs.parameters)
    traced_here = _traced_here(programs, args, kwargs) if size != count else None
    shapes = [tuple(leaf.shape) for leaf in signature.leaves]
    if traced_here is not None:
        shapes = _shapes(programs, call, in_axes, paths, traced_here, (size, count), scale or {})
    leaves = [
        jax.ShapeDtypeStruct(
            shape if axis is None else (*shape[:axis], count, *shape[axis + 1 :]),
            leaf.dtype,
            weak_type=leaf.weak_type,
        )
        for leaf, axis, shape in zip(signature.leaves, in_axes, shapes, strict=True)
    ]
    dynamic, named = jax.tree.unflatten(signature.tree, leaves)
    positional = list(args)
    for position, value in zip(signature.positions, dynamic, strict=True):
        positional[position] = value
    target_options = dataclasses.replace(
        options, devices=devices, backend=None, axis_size=options.axis_size and count
    )
    before = [leaf.shape for leaf in signature.leaves]
    grown = grown_names(paths, before, [leaf.shape for leaf in leaves])
    with explained(programs.function, len(devices), grown):
        program, traced = PmapImpl(programs.fun, target_options).traced(*positional, **named)
    return Retraced(traced, program.mesh, tuple(positional), named, grown)


def _traced_here(
    programs: ProgramBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Program, jax.stages.Traced] | None:
    """Traces a pmapped function for the devices of this process, if they are enough."""
    try:
        program, traced = PmapImpl(programs.fun, programs.options).traced(*args, **kwargs)
    except errors.PmapxError:
        return None
    return None if program.as_shards else (program, traced)


def _shapes(
    programs: ProgramBuilder,
    call: Call,
    in_axes: Sequence[int | None],
    paths: Sequence[str],
    here: tuple[Program, jax.stages.Traced],
    sizes: tuple[int, int],
    scale: Scale,
) -> list[tuple[int, ...]]:
    """Returns the arguments' shapes, the mapped axis aside.

    State of which each device has a part, as in FSDP or ZeRO, has smaller parts on more devices.
    """
    program, traced = here
    kept = [tuple(leaf.shape) for leaf in call.signature.leaves]
    carried = donation.carried((call.args, call.kwargs), traced.out_info)
    states = {argument for argument, _ in carried}
    given = []
    for index, (path, shape, axis) in enumerate(zip(paths, kept, in_axes, strict=True)):
        is_fixed = any(is_part(path, name) and scale[name] is None for name in scale)
        other = None if axis is not None and (index in states or is_fixed) else 0
        exponents = (1 if k == axis else other for k in range(len(shape)))
        given.append(Given(path, shape, tuple(exponents)))
    found = exponents_of(traced.jaxpr, program.mesh.axis_names[0], None, given, carried)

    def target_size(path: str, n: int, exponent: int) -> int:
        if exponent < 0:
            return divided(programs.function, path, sizes[0] * n, sizes[1])
        return grown_size(n, *sizes, exponent)

    return [
        tuple(n if k == axis else target_size(path, n, exponents[k]) for k, n in enumerate(shape))
        for path, shape, axis, exponents in zip(paths, kept, in_axes, found, strict=True)
    ]


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
