"""What an audit found, as data: printed, written as JSON or as a page, and read back.

Nothing here needs JAX, so that a report can be shown where there is none.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Mapping
from typing import Any, Self

from pmapx._src.audit.hlo.collectives import Collective
from pmapx._src.audit.topology.growth import Scaling
from pmapx._src.source import atomic_write

FORMAT = 1
"""The version of what ``to_dict`` gives; one is added when a name in it goes or changes."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array among the arguments or outputs of a mapped function.

    Attributes:
      path: what the caller calls it, e.g. ``state['w']``.
      shape: its shape as the caller sees it.
      dtype: its type.
      shard_shape: the shape of what a device holds.
      axes_by_dimension: for each dimension, the mesh axes that split it.
      bytes_a_device: what a device holds of it.
      varies_over: the mesh axes along which devices hold different values; empty when all are
        proven to hold the same.
      since: where that began, if it varies.
      is_compared: whether the values that were passed were compared, not just the types.
      stacked_copies: the bytes, over all devices, that repeat what another device's row holds.
      moved: why it has to be moved before the program runs, if it has to.
      carried: the output that has its structure and shapes, for an argument that is state.
      is_kept_equal: whether that output is proven equal on all devices if this comes in so.
      made_at: the line that made it, of an output that varies.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    shard_shape: tuple[int, ...]
    axes_by_dimension: tuple[tuple[str, ...], ...]
    bytes_a_device: int
    varies_over: tuple[str, ...] = ()
    since: str | None = None
    is_compared: bool = False
    stacked_copies: int = 0
    moved: str | None = None
    carried: str | None = None
    is_kept_equal: bool = False
    made_at: str | None = None

    @property
    def is_equal(self) -> bool:
        """Whether all devices hold the same values, in their rows of it or in the whole."""
        return not self.varies_over

    @property
    def lacks_a_reduction(self) -> bool:
        """Whether it varies since an argument does, and nothing on the way made it equal."""
        return bool(self.varies_over and self.since) and not str(self.since).startswith("`")

    @property
    def is_split(self) -> bool:
        """Whether devices hold different parts of it."""
        return any(self.axes_by_dimension)

    @property
    def is_stacked_copies(self) -> bool:
        """Whether it has one row a device, all the same."""
        return self.is_split and self.is_equal

    @property
    def spec(self) -> str:
        """How it lies on the mesh, as a partition spec is written.

        >>> Leaf("x", (8, 4), "float32", (1, 4), (("i",), ()), 16).spec
        "P('i')"
        """
        entries = [
            "None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(axes)
            for axes in self.axes_by_dimension
        ]
        while entries and entries[-1] == "None":
            entries.pop()
        return f"P({', '.join(entries)})"

    @property
    def type(self) -> str:
        """Its type and shape, e.g. ``float32[8,4]``."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Exchange(Collective):
    """One collective of the compiled program, with what is known of it beside the program's text.

    Its place and operation are those of what it sends, where XLA added it; the operation is JAX's
    short name, e.g. ``psum``.

    Attributes:
      is_written: whether the user's code has this collective; XLA added it otherwise.
      seconds: an estimate of its time, once; None where none is made.
      argument: the argument that it sends as it came in, if it does.
      merges_with: a number that it shares with collectives that could run as one with it.
    """

    is_written: bool = False
    seconds: float | None = None
    argument: str | None = None
    merges_with: int | None = None

    @property
    def seconds_in_a_call(self) -> float | None:
        """The estimate for all the times that it runs in one call."""
        return None if self.seconds is None else self.seconds * self.times_at_least


@dataclasses.dataclass(frozen=True)
class Memory:
    """The bytes that a device needs for a call, as the compiler counts them.

    Attributes:
      arguments: what goes in.
      outputs: what comes out.
      temporaries: what is needed between.
      aliases: outputs that lie where donated arguments were, counted in both of the first two.
    """

    arguments: int
    outputs: int
    temporaries: int
    aliases: int

    @property
    def total(self) -> int:
        """All of it, at most.

        >>> Memory(arguments=100, outputs=60, temporaries=10, aliases=50).total
        120
        """
        return self.arguments + self.outputs + self.temporaries - self.aliases


@dataclasses.dataclass(frozen=True)
class Donation:
    """A donated argument, and why it was not reused if it was not."""

    path: str
    bytes_a_device: int
    is_used: bool
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class MovedInput:
    """An input that was moved before a call, why, and how often."""

    path: str
    reason: str
    count: int
    bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class History:
    """What a function did up to the audit, or over the run of a program.

    Attributes:
      calls: how often it was called.
      traces: how often it was traced; None where nobody counted.
      compiles: how many programs were compiled.
      reasons: why each program was compiled.
      moved: the inputs that were moved.
    """

    calls: int = 0
    traces: int | None = 0
    compiles: int = 0
    reasons: tuple[str, ...] = ()
    moved: tuple[MovedInput, ...] = ()


@dataclasses.dataclass(frozen=True)
class RowRead:
    """A line that takes rows of arrays that lie on several devices.

    Attributes:
      place: the line.
      index: what stands between the brackets, e.g. ``0``.
      count: how often that happened.
      bytes: what JAX's own indexing sends for it, over all devices, in all of these.
      type: the type and shape of the first such array.
    """

    place: str
    index: str
    count: int
    bytes: int
    type: str


@dataclasses.dataclass(frozen=True)
class Remark:
    """A finding: what is costly or wrong, and how to mend it.

    Attributes:
      code: its code, which ``pmapx explain`` expands.
      name: the code's name in words.
      message: what was found, with the arrays and lines that it is about.
      fix: what to do.
      function: the mapped function that it is about, if it is about one.
      place: the line that it is about, if it is about one.
    """

    code: str
    name: str
    message: str
    fix: str
    function: str | None = None
    place: str | None = None


@dataclasses.dataclass(frozen=True)
class AuditedFunction:
    """What was found about one mapped function and one signature of its arguments.

    Attributes:
      name: the function's name.
      kind: what mapped it, e.g. ``pmapx.pmap``.
      place: where it is defined.
      axis_sizes: the axes of its mesh.
      device_kind: what its devices are, as JAX names it.
      arguments: its arguments' leaves.
      outputs: its outputs' leaves.
      exchanges: the collectives of the compiled program.
      memory: what a device needs for a call; None where the compiler does not tell.
      donations: its donated arguments.
      history: what it did up to the audit, or over the run.
      compile_seconds: how long XLA took; None where it was not compiled for the audit.
      findings: what to look at.
      mapped_at: the line that mapped it, when a program was run.
      scaling: what it costs a device on other numbers of devices, if that was asked for.
    """

    name: str
    kind: str
    place: str | None
    axis_sizes: Mapping[str, int]
    device_kind: str
    arguments: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    exchanges: tuple[Exchange, ...]
    memory: Memory | None
    donations: tuple[Donation, ...]
    history: History
    compile_seconds: float | None = None
    findings: tuple[Remark, ...] = ()
    mapped_at: str | None = None
    scaling: Scaling | None = None

    @property
    def device_count(self) -> int:
        """How many devices its mesh has."""
        return math.prod(self.axis_sizes.values())

    @property
    def sent_in_a_call(self) -> int:
        """The bytes that a device sends in one call."""
        return sum(exchange.sent_in_a_call for exchange in self.exchanges)

    @property
    def between_in_a_call(self) -> int:
        """The bytes among those that leave its slice."""
        return sum(exchange.between_in_a_call for exchange in self.exchanges)

    @property
    def seconds_in_a_call(self) -> float | None:
        """The estimate for all its collectives, one after the other; None if one has none."""
        times = [exchange.seconds_in_a_call for exchange in self.exchanges]
        known = [seconds for seconds in times if seconds is not None]
        return sum(known) if len(known) == len(times) else None

    @property
    def stacked_copies(self) -> int:
        """The bytes among arguments that repeat what another device's row holds."""
        return sum(leaf.stacked_copies for leaf in self.arguments)


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """What ``pmapx.audit`` returns: readable when printed, and as data, JSON or a page.

    Example:
      >>> import jax, numpy as np, pmapx
      >>> double = pmapx.pmap(lambda x: 2 * x)
      >>> report = pmapx.audit(double, np.ones((jax.device_count(), 3)))
      >>> report.functions[0].memory.arguments
      12

    Attributes:
      functions: each mapped function, once a signature.
      row_reads: lines that take rows of arrays over several devices, when a program was run.
      findings: what to look at, the functions' own findings among them.
      assumptions: what the estimates rest on.
      jax_version: the release of JAX.
      topology: the devices that it was compiled for, where they are not there.
      command: the program that was run, if one was.
      status: its exit status.
      skipped: functions that could not be audited, each with the reason.
    """

    functions: tuple[AuditedFunction, ...]
    row_reads: tuple[RowRead, ...] = ()
    findings: tuple[Remark, ...] = ()
    assumptions: tuple[str, ...] = ()
    jax_version: str = ""
    topology: str | None = None
    command: str | None = None
    status: int | None = None
    skipped: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Writes it as tables, for a terminal."""
        from pmapx._src.audit.report import as_text

        return as_text.render(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns it as dicts, lists, strings and numbers."""
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return {"format": FORMAT, **content}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes what ``to_dict`` returns to a file, whole or not at all."""
        atomic_write.write_output(os.fspath(path), json.dumps(self.to_dict(), indent=2) + "\n")

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes one page that needs nothing else, with pictures, whole or not at all."""
        from pmapx._src.audit.report import as_html

        atomic_write.write_output(os.fspath(path), as_html.render(self))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Reads back what ``to_dict`` returned.

        >>> AuditReport.from_dict(AuditReport(()).to_dict()) == AuditReport(())
        True
        """
        built: Self = _built(cls, {k: v for k, v in content.items() if k != "format"})
        return built


def _built(kind: Any, value: Any) -> Any:
    """Returns what JSON gave as a value of type ``kind``."""
    if value is None:
        return None
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _built(hints[name], held) for name, held in value.items()})
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (kind,) = (each for each in inner if each is not type(None))
        return _built(kind, value)
    if origin is tuple:
        return tuple(_built(inner[0], held) for held in value)
    return value
