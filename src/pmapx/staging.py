"""A call inside somebody's trace: recorded there, not run.

Under ``jit``, ``grad``, ``vmap`` and the like the arguments are tracers, and the map becomes part
of what is being traced: on a mesh of its own, on the mesh that is set around, or, inside another
pmap or ``shard_map``, on what that leaves free.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx import _fastpath, crossings, errors, layout, nesting, outer_trace, placement, spanning
from pmapx.axes import Mapping
from pmapx.calls import Call
from pmapx.element import vectorized
from pmapx.program import Program, may_lose_values, varying_outputs
from pmapx.programs import Programs
from pmapx.refusals import refused


def is_traced(call: Call) -> bool:
    """Says whether a call has to be recorded: by its arguments, or by what surrounds it."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in call.leaves) or _fastpath.is_staging()


def _is_recorded() -> bool:
    """Says whether operations are recorded, as by ``jit``, not only followed, as by ``grad``."""
    return isinstance(jax.lax.full((), 0), jax.core.Tracer)


def stage(programs: Programs, call: Call) -> Any:
    """Records the call in the trace that is under way."""
    if programs.spans_processes() and not _is_recorded():
        return _stage_rows(programs, call)
    mapping = programs.resolve(call.signature)
    level = nesting.current_level() or nesting.level_from_context()
    if level is not None:
        if programs.options.devices is not None:
            raise errors.NestedDevices(
                programs.function, programs.options.axis_name, level.axis_name
            )
        element = programs.element(call.signature)
        return nesting.map_inner(level, element, mapping.outermost)(*call.leaves)
    try:
        jitted, result = _stage_program(programs, call, mapping)
    except nesting.InnerPmapMet:
        programs.shared.has_inner_pmaps = True
        mapping = programs.resolve(call.signature)
        jitted, result = _stage_program(programs, call, mapping)
    if may_lose_values(mapping):
        traced = jitted.trace(*call.args, **call.kwargs)  # JAX remembers the trace.
        programs.record.warn_once(varying_outputs(traced, mapping, programs.function))
    return result


def _stage_rows(programs: Programs, call: Call) -> Any:
    """Follows a call on this process's rows, which are global for the length of the call."""
    signature = spanning.over_all_processes(programs, call).signature
    program, traced = programs.traced(signature, None)
    wanted: Any = program.layout.in_shardings  # Never left open where processes are spanned.
    arguments = [
        leaf if programs.is_whole(leaf) else crossings.to_global(leaf, sharding)
        for leaf, sharding in zip(call.leaves, wanted, strict=True)
    ]
    args, kwargs = jax.tree.unflatten(signature.tree, arguments)
    result = program.jitted(*args, **kwargs)
    programs.record.warn_once(varying_outputs(traced, program.mapping, programs.function))
    if programs.options.view == "global":
        return result
    leaves, tree = jax.tree.flatten(result)
    shardings = program.out_shardings(traced.out_info)
    return jax.tree.unflatten(tree, map(crossings.to_local, leaves, shardings))


def _stage_program(programs: Programs, call: Call, mapping: Mapping) -> tuple[Any, Any]:
    """Records the program, on the mesh of the context if any; returns its jit and result."""
    try:
        program = programs.program_for(call.signature, None)
    except (errors.TooManyElements, errors.NestingTooLarge) as error:
        if not _is_recorded():
            raise
        return _stage_refused(programs, call, mapping, error)
    context = placement.context_mesh()
    if context is not None:
        return _stage_in_context(programs, call, mapping, context)
    shared = outer_trace.mesh_to_share(program.layout.mesh, call.leaves, programs.devices())
    if shared is not None:
        return _stage_in_context(programs, call, mapping, shared)
    args, kwargs = call.args, call.kwargs
    mesh_in_types = placement.mesh_in_types(call.leaves)
    try:
        if mesh_in_types is not None:
            args, kwargs = _replicated(call, program)
        return program.jitted, program.jitted(*args, **kwargs)
    except ValueError as error:
        devices = programs.devices()
        if mesh_in_types is not None and mesh_in_types.size <= len(devices):
            # Before 0.9, a put array keeps the mesh in its type: let that be the context.
            context = placement.on_devices(mesh_in_types, devices)
            return _stage_in_context(programs, call, mapping, context)
        if "incompatible devices" not in str(error):
            raise
        # Under grad, say: the tracer hides an array that lies elsewhere.
        args, kwargs = _replicated(call, program)
        return program.jitted, program.jitted(*args, **kwargs)


def _stage_refused(
    programs: Programs, call: Call, mapping: Mapping, error: Exception
) -> tuple[Any, Any]:
    """Records a map that there are too few devices for: it can be traced, and not lowered."""
    outermost = mapping.outermost
    element = nesting.inside(nesting.Level(outermost.name), programs.element(call.signature))
    jitted = programs.jitted(call.signature, vectorized(element, outermost))
    return jitted, refused(jitted(*call.args, **call.kwargs), error)


def _replicated(call: Call, program: Program) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments put on the program's devices, in a way that suits every rank."""
    everywhere = NamedSharding(program.layout.mesh, PartitionSpec())
    leaves = [jax.device_put(leaf, everywhere) for leaf in call.leaves]
    args, kwargs = jax.tree.unflatten(call.signature.tree, leaves)
    return args, kwargs


def _stage_in_context(
    programs: Programs, call: Call, mapping: Mapping, context: Mesh
) -> tuple[Any, Any]:
    """Records the program on the mesh ``context``; returns its jit and result."""
    signature, has_inner = call.signature, programs.shared.has_inner_pmaps
    key = (signature, context, has_inner)
    jitted = programs.shared.in_context.get(key)
    if jitted is None:
        inner_axes = programs.inner_axes(signature, mapping) if has_inner else None
        element = programs.element(signature, len(mapping.levels))
        mapped = layout.lay_out_in_context(element, mapping, context, inner_axes)
        jitted = programs.shared.in_context[key] = programs.jitted(signature, mapped)
    with jax.sharding.use_abstract_mesh(context.abstract_mesh):
        return jitted, jitted(*call.args, **call.kwargs)
