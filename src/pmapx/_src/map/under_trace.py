"""A call inside a trace: recorded there, not run.

Under ``jit``, ``grad``, ``vmap`` and the like the arguments are tracers, and the pmap becomes part
of the trace: on its own mesh, on the context mesh, or, inside another pmap or
``shard_map``, on the mesh axes that those leave free.
"""

import contextlib
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._src import errors, fastpath
from pmapx._src.map import multiprocess_call
from pmapx._src.map.program import Program, may_lose_values, varying_outputs
from pmapx._src.map.program_builder import ProgramBuilder
from pmapx._src.mesh import context_mesh, device_mesh, enclosing_jit
from pmapx._src.mesh.enclosing_jit import refused
from pmapx._src.multihost import differentiable
from pmapx._src.spmd import nesting
from pmapx._src.spmd.axes import Mapping
from pmapx._src.spmd.mapped_body import vmapped
from pmapx._src.trees.signature import Call, program_tree


class Recorded(NamedTuple):
    """A pmap in an enclosing trace: its jit, arguments and result."""

    jitted: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


def is_traced(call: Call) -> bool:
    """Whether a call has to be recorded, by its arguments or by the context."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in call.leaves) or fastpath.is_staging()


def _is_staged() -> bool:
    """Whether operations go into a jaxpr, as under ``jit``, and do not run, as under ``grad``."""
    return isinstance(jax.lax.full((), 0), jax.core.Tracer)


def record_in_trace(builder: ProgramBuilder, call: Call) -> Any:
    with builder.statistics.counting_traces():
        if builder.is_multi_process() and not _is_staged():
            return _record_multiprocess(builder, call)
        mapping = builder.resolve(call.signature)
        level = nesting.current_level() or nesting.level_from_context()
        if level is not None:
            if builder.options.devices is not None:
                axis_name = builder.options.axis_name
                raise errors.NestedDevices(builder.function, axis_name, level.axis_name)
            body = builder.body(call.signature)
            return nesting.map_inner(level, body, mapping.outermost)(*call.leaves)
        recorded: Recorded | None = None
        with contextlib.suppress(nesting.InnerPmapMet), enclosing_jit.undone_on_error():
            recorded = _record(builder, call, mapping)
        if recorded is None:
            builder.cache.has_inner_pmaps = True
            mapping = builder.resolve(call.signature)
            recorded = _record(builder, call, mapping)
        if may_lose_values(mapping):
            traced = recorded.jitted.trace(*recorded.args, **recorded.kwargs)  # JAX caches it.
            builder.statistics.warn_once(varying_outputs(traced, mapping))
        return recorded.result


def _record_multiprocess(builder: ProgramBuilder, call: Call) -> Any:
    """Runs a call under ``grad`` or ``vmap``; the program takes its host-local arrays as global."""
    signature = multiprocess_call.with_global_shapes(builder, call).signature
    program, traced = builder.trace(signature, None)
    wanted: Any = program.in_shardings  # Never left to XLA in a multi-process program.
    leaves = [
        leaf if builder.is_global(leaf) else differentiable.to_global(leaf, sharding)
        for leaf, sharding in zip(call.leaves, wanted, strict=True)
    ]
    result = _run(program, leaves).result
    builder.statistics.warn_once(varying_outputs(traced, program.mapping))
    if builder.options.view == "global":
        return result
    leaves, tree = jax.tree.flatten(result)
    shardings = program.out_shardings(tree, leaves)
    return jax.tree.unflatten(tree, map(differentiable.to_local, leaves, shardings))


def _run(program: Program, leaves: Any) -> Recorded:
    args, kwargs = program.arguments(leaves)
    return Recorded(program.jitted, args, kwargs, program.jitted(*args, **kwargs))


def _record(builder: ProgramBuilder, call: Call, mapping: Mapping) -> Recorded:
    """Records the program, on the mesh of the context if there is one."""
    try:
        program = builder.program_for(call.signature, None)
    except (errors.NotEnoughDevices, errors.NestingTooLarge) as error:
        if not _is_staged():
            raise
        return _record_refused(builder, call, mapping, error)
    context = context_mesh.context_mesh()
    if context is None:
        context = enclosing_jit.mesh_to_share(program.mesh, call.leaves, builder.devices())
    if context is not None:
        return _record_on(context, builder, call, mapping)
    explicit_mesh = next(filter(None, map(context_mesh.explicit_mesh_in_type, call.leaves)), None)
    try:
        return _run(program, call.leaves if explicit_mesh is None else _replicated(call, program))
    except ValueError as error:
        devices = builder.devices()
        has_room = explicit_mesh is not None and explicit_mesh.size <= len(devices)
        if not has_room and "incompatible devices" not in str(error):
            raise
    # Outside of the handler, so that errors do not chain to it.
    if explicit_mesh is not None and has_room:
        # Before 0.9, device_put keeps the mesh in an array's type: let that be the context.
        context = device_mesh.on_devices(explicit_mesh, devices)
        return _record_on(context, builder, call, mapping)
    # Such as under grad: the tracer hides an array that is committed elsewhere.
    return _run(program, _replicated(call, program))


def _record_on(context: Mesh, builder: ProgramBuilder, call: Call, mapping: Mapping) -> Recorded:
    program = builder.program_in_trace(call.signature, mapping, context)
    with jax.sharding.use_abstract_mesh(context.abstract_mesh):
        return _run(program, call.leaves)


def _record_refused(
    builder: ProgramBuilder, call: Call, mapping: Mapping, error: Exception
) -> Recorded:
    """Records a pmap that there are too few devices for: it can be traced, but not lowered."""
    outermost = mapping.outermost
    body = nesting.inside(nesting.Level(outermost.name), builder.body(call.signature))
    jitted = builder.jit(call.signature, vmapped(body, outermost))
    args, kwargs = jax.tree.unflatten(program_tree(call.signature), call.leaves)
    return Recorded(jitted, args, kwargs, refused(jitted(*args, **kwargs), error))


def _replicated(call: Call, program: Program) -> list[Any]:
    """Returns the leaves replicated on the program's devices, whatever their rank."""
    replicated = NamedSharding(program.mesh, PartitionSpec())
    return [jax.device_put(leaf, replicated) for leaf in call.leaves]
