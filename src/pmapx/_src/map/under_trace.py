"""A call inside somebody's trace: recorded there, not run.

Under ``jit``, ``grad``, ``vmap`` and the like the arguments are tracers, and the map becomes part
of what is being traced: on a mesh of its own, on the mesh that is set around, or, inside another
pmap or ``shard_map``, on what that leaves free.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._src import errors, fastpath
from pmapx._src.map import multiprocess_call
from pmapx._src.map.program import Program, may_lose_values, varying_outputs
from pmapx._src.map.program_builder import Programs
from pmapx._src.mesh import enclosing_jit, placement, trace_context
from pmapx._src.mesh.lowering_errors import refused
from pmapx._src.multihost import differentiable
from pmapx._src.spmd import nesting, partitioning
from pmapx._src.spmd.axes import Mapping
from pmapx._src.spmd.mapped_body import vectorized
from pmapx._src.trees import flat_arguments
from pmapx._src.trees.signature import Call

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def is_traced(call: Call) -> bool:
    """Says whether a call has to be recorded: by its arguments, or by what surrounds it."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in call.leaves) or fastpath.is_staging()


def _is_recorded() -> bool:
    """Says whether operations are recorded, as by ``jit``, not only followed, as by ``grad``."""
    return isinstance(jax.lax.full((), 0), jax.core.Tracer)


def stage(programs: Programs, call: Call) -> Any:
    """Records the call in the trace that is under way."""
    with programs.record.counting_traces():
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
        jitted, (args, kwargs), result, mapping = _stage_with_room(programs, call, mapping)
        if may_lose_values(mapping):
            traced = jitted.trace(*args, **kwargs)  # JAX remembers the trace.
            programs.record.warn_once(varying_outputs(traced, mapping, programs.function))
        return result


def _stage_with_room(
    programs: Programs, call: Call, mapping: Mapping
) -> tuple[Any, Arguments, Any, Mapping]:
    """Records the program, with mesh axes for pmaps met inside.

    Returns what ``_stage_program`` does, and the mapping that it was recorded for.
    """
    with contextlib.suppress(nesting.InnerPmapMet), enclosing_jit.undone_on_error():
        return *_stage_program(programs, call, mapping), mapping
    programs.shared.has_inner_pmaps = True
    mapping = programs.resolve(call.signature)
    return *_stage_program(programs, call, mapping), mapping


def _stage_rows(programs: Programs, call: Call) -> Any:
    """Follows a call on this process's rows, which are global for the length of the call."""
    signature = multiprocess_call.over_all_processes(programs, call).signature
    program, traced = programs.traced(signature, None)
    wanted: Any = program.layout.in_shardings  # Never left open where processes are spanned.
    taken = [
        leaf if programs.is_whole(leaf) else differentiable.to_global(leaf, sharding)
        for leaf, sharding in zip(call.leaves, wanted, strict=True)
    ]
    args, kwargs = program.arguments(taken)
    result = program.jitted(*args, **kwargs)
    programs.record.warn_once(varying_outputs(traced, program.mapping, programs.function))
    if programs.options.view == "global":
        return result
    leaves, tree = jax.tree.flatten(result)
    shardings = program.out_shardings(tree, leaves)
    return jax.tree.unflatten(tree, map(differentiable.to_local, leaves, shardings))


def _stage_program(programs: Programs, call: Call, mapping: Mapping) -> tuple[Any, Arguments, Any]:
    """Records the program, on the mesh of the context if any.

    Returns its jit, the arguments that it took, and its result.
    """
    try:
        program = programs.program_for(call.signature, None)
    except (errors.NotEnoughDevices, errors.NestingTooLarge) as error:
        if not _is_recorded():
            raise
        return _stage_refused(programs, call, mapping, error)
    context = placement.context_mesh()
    if context is not None:
        return _stage_in_context(programs, call, mapping, context)
    shared = enclosing_jit.mesh_to_share(program.layout.mesh, call.leaves, programs.devices())
    if shared is not None:
        return _stage_in_context(programs, call, mapping, shared)
    args, kwargs = program.arguments(call.leaves)
    mesh_in_types = placement.mesh_in_types(call.leaves)
    try:
        if mesh_in_types is not None:
            args, kwargs = _replicated(call, program)
        return program.jitted, (args, kwargs), program.jitted(*args, **kwargs)
    except ValueError as error:
        devices = programs.devices()
        has_room = mesh_in_types is not None and mesh_in_types.size <= len(devices)
        if not has_room and "incompatible devices" not in str(error):
            raise
    # Outside of the handler, so that what is raised here has no part in that error.
    if mesh_in_types is not None and has_room:
        # Before 0.9, a put array keeps the mesh in its type: let that be the context.
        context = placement.on_devices(mesh_in_types, devices)
        return _stage_in_context(programs, call, mapping, context)
    # Under grad, say: the tracer hides an array that lies elsewhere.
    args, kwargs = _replicated(call, program)
    return program.jitted, (args, kwargs), program.jitted(*args, **kwargs)


def _stage_refused(
    programs: Programs, call: Call, mapping: Mapping, error: Exception
) -> tuple[Any, Arguments, Any]:
    """Records a map that there are too few devices for: it can be traced, and not lowered."""
    outermost = mapping.outermost
    element = nesting.inside(nesting.Level(outermost.name), programs.element(call.signature))
    jitted = programs.jitted(call.signature, vectorized(element, outermost))
    args, kwargs = jax.tree.unflatten(flat_arguments.program_tree(call.signature), call.leaves)
    return jitted, (args, kwargs), refused(jitted(*args, **kwargs), error)


def _replicated(call: Call, program: Program) -> Arguments:
    """Returns the arguments put on the program's devices, in a way that suits every rank."""
    everywhere = NamedSharding(program.layout.mesh, PartitionSpec())
    return program.arguments(jax.device_put(leaf, everywhere) for leaf in call.leaves)


def _stage_in_context(
    programs: Programs, call: Call, mapping: Mapping, context: Mesh
) -> tuple[Any, Arguments, Any]:
    """Records the program on the mesh ``context``; returns what ``_stage_program`` does."""
    signature, has_inner = call.signature, programs.shared.has_inner_pmaps
    key = (signature, context, has_inner)
    found = programs.shared.in_context.get(key)
    if found is None:
        trace_context.watched_context()  # Programs go when JAX's traces do.
        inner_axes = programs.inner_axes(signature, mapping) if has_inner else None
        element = programs.element(signature, len(mapping.levels))
        mapped = partitioning.lay_out_in_context(element, mapping, context, inner_axes)
        found = programs.jitted(signature, mapped), flat_arguments.program_tree(signature)
        programs.shared.in_context[key] = found
    jitted, tree = found
    args, kwargs = jax.tree.unflatten(tree, call.leaves)
    with jax.sharding.use_abstract_mesh(context.abstract_mesh):
        return jitted, (args, kwargs), jitted(*args, **kwargs)
