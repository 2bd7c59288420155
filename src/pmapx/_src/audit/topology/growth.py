"""What a mapped function costs a device on several numbers of devices, as data, and what grows.

Nothing here needs JAX, as nothing in a report does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pmapx._src.audit.report.units import in_bytes, table

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
      between: those among them that leave its slice.
      payloads: the bytes of the values in collectives, by what each is and where it comes from.
      arguments: the bytes of the arguments.
      outputs: the bytes of the outputs that do not take the place of arguments.
      temporaries: the bytes of what is in between.
      compile_seconds: how long it took to trace, lower and compile.
      slices: in how many slices the devices lie.
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
    between: int = 0
    slices: int = 1

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
        write = in_bytes if self.unit == "bytes" else str
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
        return "\n".join([f"{self.function}, a device:", *self.rows(), "", *self.words()])

    def rows(self) -> list[str]:
        """Returns the lines of the table."""
        crosses = any(point.between for point in self.points)
        rows = [
            [
                *(f"{point.devices:,}", point.topology, str(point.collectives)),
                in_bytes(point.sent),
                *([in_bytes(point.between)] if crosses else []),
                *(in_bytes(point.memory), in_bytes(point.temporaries)),
                f"{point.compile_seconds:.1f} s",
            ]
            for point in self.points
        ]
        to_others = ["to other slices"] if crosses else []
        heads = ["devices", "topology", "collectives", "sent", *to_others, "memory", "temporaries"]
        return table([*heads, "compile"], rows, right=(0, *range(2, len(heads) + 1)))

    def words(self) -> list[str]:
        """Says what grows, a line each."""
        if not self.growing:
            return ["nothing that a device sends or holds grows with the number of devices"]
        return ["grows with the number of devices:", *(f"  {each}" for each in self.growing)]

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain numbers and texts."""
        return dataclasses.asdict(self)


def growth_of(points: Sequence[Point]) -> list[Growth]:
    """Says what is more on the most devices than on the fewest; one device sends nothing.

    A program over several slices is another one, since what leaves a slice is sent apart: what it
    sends and needs in between is compared with that of fewer slices, not with that of one.
    """
    compared = [point for point in points if point.devices > 1]
    if len(compared) < 2:
        return []
    few, many = compared[0], compared[-1]
    candidates = [
        *_growth_on_the_way([point for point in compared if point.slices == 1]),
        *_growth_on_the_way([point for point in compared if point.slices > 1]),
        Growth("arguments", few.arguments, many.arguments),
        Growth("outputs", few.outputs, many.outputs),
    ]
    kept: dict[str, Growth] = {}
    for growth in filter(_is_growth, candidates):
        kept.setdefault(growth.what, growth)
    return list(kept.values())


def _growth_on_the_way(points: Sequence[Point]) -> list[Growth]:
    if len(points) < 2:
        return []
    few, many = points[0], points[-1]
    return [
        Growth("number of collectives", few.collectives, many.collectives, unit=""),
        *(
            Growth(name, few.payloads.get(name, 0), many.payloads[name])
            for name in sorted(many.payloads)
        ),
        Growth("temporaries", few.temporaries, many.temporaries),
    ]


def _is_growth(growth: Growth) -> bool:
    # A tile or so more is the compiler's, not the program's.
    slack = 64 * 1024 if growth.unit == "bytes" and not growth.few else 0
    return growth.many > _GROWS * growth.few + slack
