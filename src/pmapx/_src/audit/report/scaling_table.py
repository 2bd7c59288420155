"""The cost of a mapped function per device on several numbers of devices, and what grows.

Nothing here needs JAX, like the rest of a report.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pmapx._src.pages.formatting import in_bytes, table

_GROWS = 1.2
"""The factor from the fewest to the most devices that counts as growth; padding is less."""


@dataclasses.dataclass(frozen=True)
class Point:
    """The cost of the function on one topology; bytes are those of one device."""

    topology: str
    devices: int
    collectives: int  # How many collectives run in a call, a loop of unknown length counted once.
    sent: int  # The bytes that a device sends in a call, by the ring algorithm.
    payloads: Mapping[str, int]  # The bytes of the values in collectives, by kind and line.
    arguments: int
    outputs: int  # The bytes of the outputs that do not reuse the memory of arguments.
    temporaries: int
    compile_seconds: float  # How long it took to trace, lower and compile.
    between: int = 0  # The bytes sent that leave its slice.
    slices: int = 1
    # Whether a device has enough memory; if not, nothing but its arguments is known.
    fits: bool = True

    @property
    def memory(self) -> int:
        """The bytes that a device holds."""
        return self.arguments + self.outputs + self.temporaries


@dataclasses.dataclass(frozen=True)
class Growth:
    """Something that grows with the number of devices, from ``few`` to ``many``.

    ``what`` is its name, e.g. ``all-gather at train.py:41``; ``unit`` is empty for a plain number.
    """

    what: str
    few: int
    many: int
    unit: str = "bytes"

    def __str__(self) -> str:
        write = in_bytes if self.unit == "bytes" else str
        return f"{self.what}: {write(self.few)} -> {write(self.many)} per device"


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A function's cost over numbers of devices, fewest first; prints as a table.

    ``growing`` has what grows with the number of devices and should not.
    """

    function: str
    points: tuple[Point, ...]
    growing: tuple[Growth, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.function}, per device:", *self.rows(), "", *self.words()])

    def rows(self) -> list[str]:
        crosses = any(point.between for point in self.points)
        rows = [
            [
                *(f"{point.devices:,}", point.topology, str(point.collectives)),
                in_bytes(point.sent),
                *([in_bytes(point.between)] if crosses else []),
                in_bytes(point.memory) if point.fits else "too much",
                in_bytes(point.temporaries) if point.fits else "-",
                f"{point.compile_seconds:.1f} s",
            ]
            for point in self.points
        ]
        to_others = ["to other slices"] if crosses else []
        heads = ["devices", "topology", "collectives", "sent", *to_others, "memory", "temporaries"]
        return table([*heads, "compile"], rows, right=(0, *range(2, len(heads) + 1)))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def words(self) -> list[str]:
        if not self.growing:
            return ["nothing that a device sends or holds grows with the number of devices"]
        return ["grows with the number of devices:", *(f"  {each}" for each in self.growing)]


def growth_of(points: Sequence[Point]) -> list[Growth]:
    """Returns what is larger on the most devices than on the fewest.

    A single device sends nothing, so it is left out. XLA compiles a program over several slices
    differently, so its communication and temporaries are compared among several slices only.
    """
    compared = [point for point in points if point.devices > 1 and point.fits]
    if len(compared) < 2:
        return []
    few, many = compared[0], compared[-1]
    candidates = [
        *_growth_in_program([point for point in compared if point.slices == 1]),
        *_growth_in_program([point for point in compared if point.slices > 1]),
        Growth("arguments", few.arguments, many.arguments),
        Growth("outputs", few.outputs, many.outputs),
    ]
    kept: dict[str, Growth] = {}
    for growth in filter(_is_growth, candidates):
        kept.setdefault(growth.what, growth)
    return list(kept.values())


def _growth_in_program(points: Sequence[Point]) -> list[Growth]:
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
    # One more tile is the compiler's choice, not the program's.
    slack = 64 * 1024 if growth.unit == "bytes" and not growth.few else 0
    if growth.what == "temporaries":
        slack = max(slack, 1024)
    return growth.many > _GROWS * growth.few + slack
