"""The subject of an audit: a mapped function, traced, lowered and compiled, its leaves named."""

import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh, NamedSharding

from pmapx._src.audit.report.scaling_table import Scaling
from pmapx._src.audit.topology import interconnect, remap_pmap, retrace_jit
from pmapx._src.audit.topology.compile_for import CompiledForTopology, compile_for
from pmapx._src.map import multiprocess_call
from pmapx._src.map.cache_info import CallStatistics
from pmapx._src.map.program import Executable
from pmapx._src.map.program_builder import ProgramBuilder
from pmapx._src.map.program_cache import unshared
from pmapx._src.mesh.partition_specs import entry_axes
from pmapx._src.replication import array_shardings, traced_program
from pmapx._src.spmd import nesting
from pmapx._src.trees import names as describe
from pmapx._src.trees.signature import Call, Signature


@dataclasses.dataclass(frozen=True)
class PerDevice:
    """A body, and how it takes the leaves of its arguments."""

    # Takes the dynamic arguments of one device, the last one a dict of keyword arguments.
    body: Callable[..., Any]
    axis: Any  # The mapped axis, as collectives in the body name it.
    # The dimension of each leaf that is mapped or sharded; None: it is replicated.
    dimensions: Sequence[int | None]
    # Whether that dimension has one entry for each device, and is gone in the body.
    is_stacked: bool


def per_device_of_pmap(programs: ProgramBuilder, signature: Signature) -> PerDevice | str:
    """Returns the body of a pmapped function, or why there is none."""
    levels = programs.resolve(signature).levels
    if len(levels) != 1 or programs.options.oversubscribe:
        return "it is a pmap of a pmap, or runs several indices on each device"
    call = programs.body(signature).call
    axis = levels[0].mesh_axis if levels[0].name is None else levels[0].name
    return PerDevice(
        lambda *args: call(*args[:-1], **args[-1]), axis, levels[0].in_axes, is_stacked=True
    )


def per_device_of_shard_map(f: Any, jaxpr: ClosedJaxpr) -> PerDevice | str | None:
    """Returns the body of ``jax.jit(jax.shard_map(body, ...))``; why not; None without one."""
    if not any(True for _ in traced_program.shard_maps(jaxpr.jaxpr)):
        return None
    top = jaxpr.jaxpr
    body = getattr(getattr(f, "__wrapped__", None), "__wrapped__", None)
    eqn = top.eqns[0]
    is_all = len(top.eqns) == 1 and eqn.primitive.name == "shard_map"
    if body is None or not is_all or list(eqn.invars) != list(top.invars):
        return (
            "it has a shard_map in it, whose body sees only its shards: in_specs and the body would"
            " have to change. pmapx migrate --to jit writes a step without one"
        )
    dimensions = []
    for spec in eqn.params["in_specs"]:
        sharded = [(k, axis) for k, entry in enumerate(spec) for axis in entry_axes(entry)]
        if len(sharded) > 1:
            return f"an in_spec shards over several axes: {spec}"
        dimensions.append(sharded[0][0] if sharded else None)
    (axis, *_) = eqn.params["mesh"].axis_names
    return PerDevice(lambda *args: body(*args[:-1], **args[-1]), axis, dimensions, is_stacked=False)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A compiled function with its arguments."""

    name: str
    kind: str  # The transform, e.g. ``pmapx.pmap``.
    place: str | None  # Where the function is defined.
    jaxpr: Any
    compiled: Any
    mesh: Any
    values: Sequence[Any]  # The leaves that were passed, arrays or shapes.
    arguments: Any  # The same as ``(args, kwargs)``.
    in_paths: Sequence[str]  # Their names in the caller's terms, e.g. ``state['w']``.
    in_names: Sequence[str]  # Their names in warnings, e.g. ``argument 0 'state' at ['w']``.
    in_types: Sequence[Any]  # Their shapes and dtypes, as the program takes them.
    in_shardings: Sequence[Any]  # Their shardings in the program; None if it gives none.
    donated: Sequence[bool]
    out_types: Any
    compile_seconds: float | None = None  # How long XLA took; None if it was compiled before.
    # The mesh axes that each argument varies over, if specs do not show that.
    varying: Sequence[frozenset[Any]] | None = None
    scaling: Scaling | None = None
    unused: frozenset[int] = frozenset()  # The arguments that the program does not use.
    grown: tuple[str, ...] = ()  # The arguments that are larger on the target topology than here.
    # The compiler's message if the program does not fit; ``compiled`` is None then.
    exceeded: str | None = None
    # The body of a pmap or ``shard_map``, or why there is none that can be used alone.
    per_device: PerDevice | str | None = None
    # Compiles a jitted function with other shardings.
    again: Callable[..., CompiledForTopology] | None = None

    @property
    def axis_sizes(self) -> dict[str, int]:
        mesh = self.mesh
        return {} if mesh is None else {str(name): size for name, size in mesh.shape.items()}

    @property
    def devices(self) -> list[Any]:
        """Its devices, in the order of its mesh."""
        return list(self.mesh.devices.flat) if isinstance(self.mesh, Mesh) else jax.devices()

    @property
    def device_kind(self) -> str:
        return str(self.devices[0].device_kind)

    @property
    def capacity(self) -> int | None:
        """The memory of a device, published or reported by the device itself; None if unknown."""
        link = interconnect.link_of(self.device_kind)
        if link is not None and link.memory is not None:
            return link.memory
        try:
            limit = (self.devices[0].memory_stats() or {}).get("bytes_limit")
        except Exception:  # A device that is only described.
            return None
        return None if limit is None else int(limit)


def of_pmapped(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Subject:
    """Compiles a pmapped function again, so that its own counts do not change."""
    theirs: ProgramBuilder = f._pmapx
    call = theirs.reader.read(args, kwargs)
    cache = unshared(theirs.fun)  # This trace is not shared.
    cache.has_inner_pmaps = theirs.cache.has_inner_pmaps
    programs = ProgramBuilder(theirs.fun, theirs.options, CallStatistics(theirs.parameters), cache)
    with nesting.entered(None):
        if programs.is_multi_process():
            call = multiprocess_call.with_global_shapes(programs, call)
        signature = call.signature
        program, traced = programs.trace(signature, programs.context_mesh_for(signature))
        started = time.perf_counter()
        executable = Executable(program.lower(traced).compile(), program, ())
    seconds = time.perf_counter() - started
    return of_executable(theirs, call, executable, traced, compile_seconds=seconds)


def of_executable(
    programs: ProgramBuilder,
    call: Call,
    executable: Executable,
    traced: jax.stages.Traced,
    *,
    compile_seconds: float | None = None,
) -> Subject:
    """Returns a compiled program of a pmapped function as a subject."""
    program, mesh = executable.program, executable.mesh
    varying = [frozenset(axes) for axes in program.mapping.varying_axes()]
    return Subject(
        name=programs.function,
        kind="pmapx.pmap",
        place=definition(programs.fun),
        jaxpr=traced.jaxpr,
        compiled=executable.compiled,
        mesh=mesh,
        values=call.leaves,
        arguments=(call.args, call.kwargs),
        in_paths=describe.leaf_paths(
            (call.args, call.kwargs), call.signature.positions, programs.parameters),
        in_names=[program.mapping.names[index] for index in range(len(varying))],
        in_types=[jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in program.mapping.leaves],
        in_shardings=executable.in_shardings,
        donated=programs.donated(call.signature),
        out_types=traced.out_info,
        compile_seconds=compile_seconds,
        varying=varying if program.as_shards else None,
        unused=_unused(executable.compiled),
        per_device=per_device_of_pmap(programs, call.signature),
    )  # fmt: skip


def of_jitted(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Subject:
    """Compiles a jitted function; any other one as ``jax.jit`` of it."""
    jitted = f if hasattr(f, "trace") and hasattr(f, "lower") else jax.jit(f)
    return of_traced(f, jitted.trace(*args, **kwargs), args, kwargs)


def of_traced(
    f: Any, traced: jax.stages.Traced, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Subject:
    lowered = traced.lower()
    started = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - started
    subject = _of_stages(f, traced, lowered, compiled, args, kwargs, seconds)
    again = functools.partial(compile_for, f, args, subject.devices, kwargs=kwargs)
    return dataclasses.replace(subject, again=again)


def of_topology(f: Any, args: tuple[Any, ...], topology: str, **options: Any) -> Subject:
    """Compiles a function ahead of time for a target topology, with options of ``compile_for``."""
    again = functools.partial(compile_for, f, args, topology, **options)
    target = again()
    subject = _of_stages(
        target.mapped, target.traced, target.lowered, target.compiled, target.args,
        dict(target.kwargs), target.compile_seconds, target.mesh,
    )  # fmt: skip
    if (programs := remap_pmap.programs_of(target.mapped)) is not None:
        signature = programs.reader.read(target.args, dict(target.kwargs)).signature
        body = per_device_of_pmap(programs, signature)
        subject = dataclasses.replace(subject, kind="pmapx.pmap", per_device=body)
    return dataclasses.replace(subject, grown=target.grown, exceeded=target.needed, again=again)


def _of_stages(
    f: Any,
    traced: jax.stages.Traced,
    lowered: jax.stages.Lowered,
    compiled: jax.stages.Compiled | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    compile_seconds: float,
    mesh: Any = None,
) -> Subject:
    infos, tree = jax.tree.flatten(lowered.args_info)
    dynamic, positions = _dynamic(args, kwargs, lowered.args_info)
    if compiled is not None:
        in_shardings = flat_shardings(compiled.input_shardings, tree)
        mesh = _mesh_of(traced.jaxpr, in_shardings)
    else:
        specs = retrace_jit.specs_in_shard_maps(traced.jaxpr.jaxpr)[-len(infos) :]
        given = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(dynamic)]
        in_shardings = [
            own if spec is None else NamedSharding(mesh, spec)
            for own, spec in zip(given, specs, strict=True)
        ]
    paths = describe.leaf_paths(dynamic, positions, describe.parameter_names(f))
    has_maps = any(True for _ in traced_program.shard_maps(traced.jaxpr.jaxpr))
    return Subject(
        name=describe.function_name(f),
        kind="jit of shard_map" if has_maps else "jit",
        place=definition(f),
        jaxpr=traced.jaxpr,
        compiled=compiled,
        mesh=mesh,
        values=jax.tree.leaves(dynamic),
        arguments=dynamic,
        in_paths=paths,
        in_names=paths,
        in_types=[jax.ShapeDtypeStruct(info.shape, info.dtype) for info in infos],
        in_shardings=shardings_on(mesh, in_shardings, [info.shape for info in infos]),
        donated=[info.donated for info in infos],
        out_types=traced.out_info,
        compile_seconds=compile_seconds,
        unused=frozenset() if compiled is None else _unused(compiled),
        per_device=per_device_of_shard_map(f, traced.jaxpr),
    )


def output_paths(result: Any) -> list[str]:
    """Names the leaves of a result by where they are in it.

    >>> output_paths(({"w": 1}, 2))
    ["out[0]['w']", 'out[1]']
    """
    with_paths = jax.tree_util.tree_flatten_with_path(result)[0]
    return [f"out{jax.tree_util.keystr(path)}" for path, _ in with_paths]


def definition(fun: Any) -> str | None:
    """Returns where a function is defined, as ``file.py:12``; None for one not in Python."""
    code = describe.code_of(fun)
    return f"{os.path.abspath(code.co_filename)}:{code.co_firstlineno}" if code else None


def _dynamic(
    args: tuple[Any, ...], kwargs: dict[str, Any], infos: Any
) -> tuple[Any, tuple[int, ...]]:
    """Leaves out the static arguments of ``jax.jit``."""
    tree: Any = jax.tree.structure(infos)
    if tree == jax.tree.structure((args, kwargs)):
        return (args, kwargs), tuple(range(len(args)))
    positions = tuple(retrace_jit.dynamic_positions(args, infos[0]))
    dynamic = tuple(args[k] for k in positions), {k: kwargs[k] for k in infos[1] if k in kwargs}
    is_known = tree == jax.tree.structure(dynamic)
    return dynamic if is_known else jax.tree.unflatten(tree, [None] * tree.num_leaves), positions


def flat_shardings(shardings: Any, tree: jax.tree_util.PyTreeDef) -> list[Any]:
    """Returns the shardings of the leaves of a tree; None for a leaf that has none.

    >>> flat_shardings(((None,), {}), jax.tree.structure(((1,), {})))
    [None]
    """
    try:
        flat = tree.flatten_up_to(shardings)
    except ValueError:
        flat = jax.tree.leaves(shardings, is_leaf=_is_sharding)
        if len(flat) != tree.num_leaves:
            return [None] * tree.num_leaves
    return [each if _is_sharding(each) else None for each in flat]


def _unused(compiled: jax.stages.Compiled) -> frozenset[int]:
    """Returns the arguments that ``jit`` dropped: the compiled program has no sharding for them."""
    found = flat_shardings(compiled.input_shardings, jax.tree.structure(compiled.args_info))
    dropped = frozenset(k for k, sharding in enumerate(found) if sharding is None)
    return dropped if len(dropped) < len(found) else frozenset()


def _is_sharding(x: Any) -> bool:
    return isinstance(x, jax.sharding.Sharding)


def _mesh_of(jaxpr: ClosedJaxpr, shardings: Sequence[Any]) -> Any:
    """Returns the mesh that a program runs on: the largest of its own and of its inputs."""
    meshes = [s.mesh for s in shardings if isinstance(s, NamedSharding)]
    meshes += [eqn.params["mesh"] for eqn in traced_program.shard_maps(jaxpr.jaxpr)]
    return max(meshes, key=lambda m: (math.prod(m.axis_sizes), isinstance(m, Mesh)), default=None)


def shardings_on(
    mesh: Any, shardings: Sequence[Any], shapes: Sequence[tuple[int, ...]]
) -> list[Any]:
    """Returns shardings as named ones on a mesh, also those that XLA chose."""
    return [
        array_shardings.named(sharding, mesh, shape) if isinstance(mesh, Mesh) else sharding
        for sharding, shape in zip(shardings, shapes, strict=True)
    ]
