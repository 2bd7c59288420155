"""What a mapped function costs a device, from a few devices to a pod, and what grows on the way.

A function whose devices each keep their share of the work should cost every device the same on 8
of them as on 4,096: what it holds, and what it sends. What does not is named.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pmapx.audit import communication
from pmapx.audit.elsewhere import Build, Elsewhere, compile_for
from pmapx.audit.topology import topology_of

COUNTS = (8, 64, 256, 1024, 4096)
"""The numbers of devices that are looked at unless others are named."""

_GROWS = 1.2
"""How many times as much, on the most devices, is growth: padding and rounding are less."""


@dataclasses.dataclass(frozen=True)
class Point:
    """What the function costs on one number of devices; bytes are those of one device.

    Attributes:
      topology: the name of the topology.
      devices: how many devices it has.
      collectives: how many collectives run in a call, a loop of unknown length once.
      sent: the bytes that a device sends in a call, by the ring algorithm.
      payloads: the bytes of the values in collectives, by what each is and where it comes from.
      arguments: the bytes of the arguments.
      outputs: the bytes of the outputs that do not take the place of arguments.
      temporaries: the bytes of what is in between.
      compile_seconds: how long it took to trace, lower and compile.
    """

    topology: str
    devices: int
    collectives: int
    sent: int
    payloads: Mapping[str, int]
    arguments: int
    outputs: int
    temporaries: int
    compile_seconds: float

    @property
    def memory(self) -> int:
        """The bytes that a device holds."""
        return self.arguments + self.outputs + self.temporaries


@dataclasses.dataclass(frozen=True)
class Growth:
    """Something that grows with the number of devices.

    Attributes:
      what: its name, e.g. ``all-gather at train.py:41``.
      few: what it was on the fewest devices.
      many: what it was on the most.
      unit: ``bytes``, or nothing for a number.
    """

    what: str
    few: int
    many: int
    unit: str = "bytes"

    def __str__(self) -> str:
        """Says it in a line."""
        write = size if self.unit == "bytes" else str
        return f"{self.what}: {write(self.few)} -> {write(self.many)} a device"


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A function's cost over numbers of devices; prints as a table.

    Attributes:
      function: the function's name.
      points: one for each number of devices, fewest first.
      growing: what grows with the number of devices and should not.
    """

    function: str
    points: tuple[Point, ...]
    growing: tuple[Growth, ...]

    def __str__(self) -> str:
        """Returns the table, and what grows."""
        heads = ("devices", "topology", "collectives", "sent", "memory", "temporaries", "compile s")
        rows = [
            (f"{p.devices:,}", p.topology, str(p.collectives), size(p.sent), size(p.memory),
             size(p.temporaries), f"{p.compile_seconds:.1f}")
            for p in self.points
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in (heads, *rows)
        ]
        if self.growing:
            lines += ["", "grows with the number of devices:"]
            lines += [f"  {growth}" for growth in self.growing]
        else:
            lines += ["", "nothing that a device sends or holds grows with the number of devices"]
        return "\n".join([f"{self.function}, a device:", *lines])

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain numbers and texts."""
        return dataclasses.asdict(self)


def scaling(
    mapped: Any,
    args: Sequence[Any] = (),
    counts: Iterable[int] = COUNTS,
    family: str = "v5p",
    *,
    kwargs: Mapping[str, Any] | None = None,
    build: Build | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Scaling:
    """Compiles a mapped function for several numbers of devices and says what grows with them.

    Each device keeps what it has: the batch grows with the devices, as ``compile_for`` says.

    Args:
      mapped: the function, as ``compile_for`` takes it.
      args: its arguments here, or their shapes and types.
      counts: the numbers of devices.
      family: the devices: ``v4``, ``v5e``, ``v5p``, ``v6e``, ``tpu7x`` or ``cpu``.
      kwargs: its keyword arguments.
      build: builds the function for the devices, as ``compile_for`` takes it.
      progress: is told before each compilation.

    >>> import jax, numpy as np, pmapx
    >>> step = pmapx.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
    >>> found = scaling(step, [np.ones((1, 4), np.float32)], counts=[1], family="cpu")
    >>> found.points[0].arguments, found.growing
    (16, ())
    """
    points = []
    for count in sorted(counts):
        topology = topology_of(count, family)
        progress(f"compiling for {topology}")
        there = compile_for(mapped, args, topology, kwargs=kwargs, build=build)
        points.append(point_of(there, topology))
    name = getattr(mapped, "__name__", None) or getattr(build, "__name__", "function")
    return Scaling(str(name), tuple(points), tuple(growth_of(points)))


def point_of(there: Elsewhere, topology: str) -> Point:
    """Reads what a compiled function costs a device."""
    found = communication.collectives(there.compiled.as_text() or "", there.axis_sizes)
    payloads: collections.Counter[str] = collections.Counter()
    for collective in found:
        times = 1 if collective.times is None else collective.times
        payloads[_name(collective)] += collective.payload * times
    memory = there.compiled.memory_analysis()
    if memory is None:
        arguments = outputs = temporaries = 0
    else:
        arguments = memory.argument_size_in_bytes
        outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
        temporaries = memory.temp_size_in_bytes
    return Point(
        topology=topology,
        devices=len(there.devices),
        collectives=sum(1 if c.times is None else c.times for c in found),
        sent=sum(collective.sent_in_a_call for collective in found),
        payloads=dict(payloads),
        arguments=arguments,
        outputs=outputs,
        temporaries=temporaries,
        compile_seconds=there.compile_seconds,
    )


def _name(collective: communication.Collective) -> str:
    if collective.place is None:
        return collective.kind
    return f"{collective.kind} at {os.path.basename(collective.place)}"


def growth_of(points: Sequence[Point]) -> list[Growth]:
    """Says what is more on the most devices than on the fewest; one device sends nothing."""
    compared = [point for point in points if point.devices > 1]
    if len(compared) < 2:
        return []
    few, many = compared[0], compared[-1]
    candidates = [
        Growth("number of collectives", few.collectives, many.collectives, unit=""),
        *(
            Growth(name, few.payloads.get(name, 0), many.payloads[name])
            for name in sorted(many.payloads)
        ),
        Growth("arguments", few.arguments, many.arguments),
        Growth("outputs", few.outputs, many.outputs),
        Growth("temporaries", few.temporaries, many.temporaries),
    ]
    return [growth for growth in candidates if _is_growth(growth)]


def _is_growth(growth: Growth) -> bool:
    # A tile or so more is the compiler's, not the program's.
    slack = 64 * 1024 if growth.unit == "bytes" and not growth.few else 0
    return growth.many > _GROWS * growth.few + slack


def size(count: int) -> str:
    """Writes a number of bytes as people do.

    >>> size(512), size(4096), size(3 * 2**20), size(5 * 2**30)
    ('512 B', '4.0 KiB', '3.0 MiB', '5.0 GiB')
    """
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
