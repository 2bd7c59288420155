"""The cost of a mapped function per device, from a few devices to a pod, and what grows.

If each device keeps its share of the work, what a device holds and sends should be the same on 8
devices as on 4,096.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pmapx._src.audit.hlo import collectives
from pmapx._src.audit.report.audit_report import Memory
from pmapx._src.audit.report.scaling_table import Point, Scaling, growth_of
from pmapx._src.audit.topology import interconnect
from pmapx._src.audit.topology.compile_for import CompiledForTopology, compile_for
from pmapx._src.trees import names


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
    name = names.function_name(options.get("build") or mapped)
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
