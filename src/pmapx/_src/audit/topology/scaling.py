"""The cost of a mapped function per device, from a few devices to a pod, and what grows.

If each device keeps its share of the work, what a device holds and sends should be the same on 8
devices as on 4,096.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from pmapx._src.audit.hlo import collectives
from pmapx._src.audit.report.audit_report import Memory
from pmapx._src.audit.report.scaling_table import Point, Scaling, growth_of
from pmapx._src.audit.topology import interconnect
from pmapx._src.audit.topology.compile_for import Build, CompiledForTopology, compile_for
from pmapx._src.audit.topology.growing_arguments import Scale
from pmapx._src.audit.topology.names import topology_of
from pmapx._src.trees import names

COUNTS = (8, 64, 256, 1024, 4096)
"""The default numbers of devices."""


def scaling(
    mapped: Any,
    args: Sequence[Any] = (),
    counts: Iterable[int] = COUNTS,
    family: str = "v5p",
    *,
    topologies: Sequence[str] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    build: Build | None = None,
    scale: Scale | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Scaling:
    """Compiles a mapped function for several numbers of devices and finds what grows with them.

    The batch grows with the devices, and state keeps its shape, as in ``compile_for``.

    Args:
      mapped: the function, as ``compile_for`` takes it.
      args: its arguments here, or their shapes and dtypes.
      counts: the numbers of devices.
      family: the devices: ``v4``, ``v5e``, ``v5p``, ``v6e``, ``tpu7x`` or ``cpu``.
      topologies: the names of the topologies, in place of ``counts`` and ``family``.
      kwargs: its keyword arguments.
      build: builds the function for the devices, as ``compile_for`` takes it.
      scale: which arguments grow, as ``compile_for`` takes it.
      progress: called with a line before each compilation.

    >>> import jax, numpy as np, pmapx
    >>> step = pmapx.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
    >>> found = scaling(step, [np.ones((1, 4), np.float32)], counts=[1], family="cpu")
    >>> found.points[0].arguments, found.growing
    (16, ())
    """
    if topologies is None:
        topologies = [topology_of(count, family) for count in sorted(counts)]
    points = []
    for topology in topologies:
        progress(f"compiling for {topology}")
        there = compile_for(mapped, args, topology, kwargs=kwargs, build=build, scale=scale)
        points.append(point_of(there, topology))
    points.sort(key=lambda point: point.devices)
    name = names.function_name(mapped if build is None else build)
    return Scaling(name, tuple(points), tuple(growth_of(points)))


def point_of(there: CompiledForTopology, topology: str) -> Point:
    """Returns the cost of a compiled function per device."""
    fabric = interconnect.fabric_of(there.devices)
    if there.compiled is None:
        return Point(
            topology, len(there.devices), 0, 0, {}, 0, 0, 0, there.compile_seconds,
            slices=fabric.slices, fits=False,
        )  # fmt: skip
    text = there.compiled.as_text() or ""
    found = collectives.collectives(text, there.axis_sizes, fabric.slice_of)
    payloads: collections.Counter[str] = collections.Counter()
    for collective in found:
        payloads[_name(collective)] += collective.payload * collective.times_at_least
    memory = memory_of(there.compiled) or Memory(0, 0, 0, 0)
    return Point(
        topology=topology,
        devices=len(there.devices),
        collectives=sum(collective.times_at_least for collective in found),
        sent=sum(collective.sent_in_a_call for collective in found),
        between=sum(collective.between_in_a_call for collective in found),
        payloads=dict(payloads),
        arguments=memory.arguments,
        outputs=memory.outputs - memory.aliases,
        temporaries=memory.temporaries,
        compile_seconds=there.compile_seconds,
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
