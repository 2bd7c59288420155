"""Ahead-of-time compilation of a mapped function for a target topology, or for several.

The mapped axis and the batch grow with the number of devices; parameters and other state keep their
global shape (``growing_arguments``). A pmapped function is mapped again (``remap_pmap``); a jitted
one is traced again with its meshes replaced by meshes of the target devices (``retrace_jit``).

If each device keeps its share of the work, what a device holds and sends should be the same on 8
devices as on 4,096: ``scaling`` finds what grows.
"""

import collections
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from pmapx._src import errors
from pmapx._src.audit.hlo import collectives
from pmapx._src.audit.report.audit_report import Memory
from pmapx._src.audit.report.scaling_table import Point, Scaling, growth_of
from pmapx._src.audit.topology import interconnect, remap_pmap, retrace_jit
from pmapx._src.audit.topology.devices import devices_of
from pmapx._src.audit.topology.growing_arguments import Scale
from pmapx._src.audit.topology.retraced import Retraced
from pmapx._src.map.pmap import PmapImpl
from pmapx._src.trees import names as describe

Build = Callable[[Sequence[jax.Device]], tuple[Any, ...]]
"""Takes devices and returns a mapped function for them, its arguments and keyword arguments."""


@dataclasses.dataclass(frozen=True)
class CompiledForTopology:
    """A mapped function compiled for other devices, with the shapes of its arguments on them."""

    mapped: Any
    devices: tuple[jax.Device, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    mesh: Mesh
    traced: jax.stages.Traced
    lowered: jax.stages.Lowered
    compiled: jax.stages.Compiled | None  # None if the program needs more memory than a device has.
    compile_seconds: float
    needed: str | None = None  # The compiler's message in that case.
    grown: tuple[str, ...] = ()  # The arguments that are larger on them.

    @property
    def axis_sizes(self) -> dict[str, int]:
        """The axes of its mesh, in order."""
        return dict(self.mesh.shape)


def compile_for(
    mapped: Any,
    args: Sequence[Any],
    topology: str | Sequence[jax.Device],
    *,
    kwargs: Mapping[str, Any] | None = None,
    build: Build | None = None,
    scale: Scale | None = None,
    reshard: Callable[[retrace_jit.Placed], retrace_jit.Placed] | None = None,
) -> CompiledForTopology:
    """Compiles a mapped function ahead of time for a target topology.

    It is one of ``pmapx.pmap``, ``jax.pmap``, or ``jax.jit`` with a mesh, or what ``build`` returns
    for the devices. Nothing is run: the arguments may be shapes and dtypes. In a mesh of several
    axes the first one grows, and in nested pmaps the outermost. ``scale`` has which dimension of an
    argument grows, ``reshard`` replaces the shardings of a jitted function.


    >>> import jax, numpy as np, pmapx
    >>> step = pmapx.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
    >>> target = compile_for(step, [np.ones((8, 4), np.float32)], "cpu:1")
    >>> target.args[0].shape, dict(target.axis_sizes)
    ((1, 4), {'i': 1})
    """
    devices = devices_of(topology) if isinstance(topology, str) else tuple(topology)
    start = time.perf_counter()
    if build is not None:
        mapped, args, kwargs = built(build, devices)
    given = tuple(args), dict(kwargs or {})
    if reshard is not None:
        target = retrace_jit.traced_on(mapped, *given, devices, scale, reshard)
    elif build is not None:
        target = _as_it_is(mapped, *given)
    elif (programs := remap_pmap.programs_of(mapped)) is not None:
        target = remap_pmap.traced_on(programs, *given, devices, scale)
    elif hasattr(mapped, "trace") and hasattr(mapped, "__wrapped__"):
        target = retrace_jit.traced_on(mapped, *given, devices, scale)
    else:
        problem = (
            "it is not recognized as a function of pmapx.pmap, jax.jit or jax.pmap (the last from "
            "JAX 0.10 on, or under pmapx.install())"
        )
        raise errors.CannotRebuild(describe.function_name(mapped), problem)
    with jax.set_mesh(target.mesh):
        lowered = target.traced.lower()
        compiled, needed = compiled_or_needed(lowered)
    seconds = time.perf_counter() - start
    return CompiledForTopology(
        mapped, devices, target.args, target.kwargs, target.mesh, target.traced, lowered, compiled,
        seconds, needed, target.grown,
    )  # fmt: skip


def compiled_or_needed(
    lowered: jax.stages.Lowered,
) -> tuple[jax.stages.Compiled | None, str | None]:
    """Compiles a program; if it needs more memory than a device has, returns that message."""
    try:
        return lowered.compile(), None
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None, str(error)


def built(
    build: Build, devices: Sequence[jax.Device]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Calls a ``build`` function and checks what it returns."""
    made = build(devices)
    if not (isinstance(made, tuple | list) and 2 <= len(made) <= 3 and callable(made[0])):
        raise errors.BadBuild(describe.function_name(build), made)
    mapped, args, *named = made
    return mapped, tuple(args), dict(named[0]) if named else {}


def _as_it_is(mapped: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Retraced:
    programs = remap_pmap.programs_of(mapped)
    if programs is not None:
        program, traced = PmapImpl(programs.fun, programs.options).traced(*args, **kwargs)
        return Retraced(traced, program.mesh, args, kwargs)
    traced = mapped.trace(*args, **kwargs)
    mesh = retrace_jit.mesh_of(traced, (args, kwargs), describe.function_name(mapped))
    return Retraced(traced, mesh, args, kwargs)


def scaling(
    mapped: Any,
    args: Sequence[Any],
    topologies: Sequence[str],
    *,
    progress: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Scaling:
    """Compiles a mapped function for several topologies and finds what grows with the devices.

    ``progress`` is called with a line before each compilation; ``options`` are those of
    ``compile_for``.

    >>> import jax, numpy as np, pmapx
    >>> step = pmapx.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
    >>> found = scaling(step, [np.ones((1, 4), np.float32)], ["cpu:1"])
    >>> found.points[0].arguments, found.growing
    (16, ())
    """
    points = []
    for topology in topologies:
        progress(f"compiling for {topology}")
        target = compile_for(mapped, args, topology, **options)
        points.append(point_of(target, topology))
    points.sort(key=lambda point: point.devices)
    name = describe.function_name(options.get("build") or mapped)
    return Scaling(name, tuple(points), tuple(growth_of(points)))


def point_of(target: CompiledForTopology, topology: str) -> Point:
    """Returns the cost of a compiled function per device."""
    fabric = interconnect.fabric_of(target.devices)
    if target.compiled is None:
        return Point(
            topology, len(target.devices), 0, 0, {}, 0, 0, 0, target.compile_seconds,
            slices=fabric.slices, fits=False,
        )  # fmt: skip
    text = target.compiled.as_text() or ""
    found = collectives.collectives(text, target.axis_sizes, fabric.slice_of)
    payloads: collections.Counter[str] = collections.Counter()
    for collective in found:
        payloads[_name(collective)] += collective.payload * collective.times_at_least
    memory = memory_of(target.compiled) or Memory(0, 0, 0, 0)
    return Point(
        topology=topology,
        devices=len(target.devices),
        collectives=sum(collective.times_at_least for collective in found),
        sent=sum(collective.sent_in_a_call for collective in found),
        between=sum(collective.between_in_a_call for collective in found),
        payloads=dict(payloads),
        arguments=memory.arguments,
        outputs=memory.outputs - memory.aliases,
        temporaries=memory.temporaries,
        compile_seconds=target.compile_seconds,
        slices=fabric.slices,
    )


def memory_of(compiled: jax.stages.Compiled) -> Memory | None:
    """Returns the memory of a call on a device; None if the backend does not report it."""
    try:
        stats = compiled.memory_analysis()
    except (NotImplementedError, RuntimeError, ValueError):
        return None
    if stats is None:
        return None
    return Memory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        aliases=stats.alias_size_in_bytes,
        peak=getattr(stats, "peak_memory_in_bytes", 0) or None,
    )


def _name(collective: collectives.Collective) -> str:
    if collective.place is None:
        return collective.kind
    return f"{collective.kind} at {os.path.basename(collective.place)}"
