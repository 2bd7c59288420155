"""The report of an audit as data: printed, written as JSON or as a page, and read back.

Nothing here needs JAX, so that a report can be shown without it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pmapx._src.audit.hlo.collectives import Collective
from pmapx._src.audit.report.scaling_table import Scaling
from pmapx._src.audit.report.what_if_table import WhatIf
from pmapx._src.pages.formatting import in_bytes, place
from pmapx._src.source.rewriting import atomic_write

if TYPE_CHECKING:
    from pmapx._src.audit.report.baseline import Comparison

FORMAT = 1
"""The version of what ``to_dict`` returns, increased when a name in it is removed or changes."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array among the arguments or outputs of a mapped function.

    Attributes:
      path: its name in the caller's terms, e.g. ``state['w']``.
      shape: its global shape.
      dtype: its dtype.
      shard_shape: the shape of a shard.
      axes_by_dimension: for each dimension, the mesh axes that shard it.
      bytes_a_device: the size of a shard.
      varies_over: the mesh axes along which devices hold different values; empty if all are proven
        to hold the same.
      since: what makes it vary, if it does.
      is_compared: whether the values that were passed were compared, and count.
      is_constant: whether they are constant, so that equal shards prove nothing.
      is_only_read: whether its shards are equal in this call, which proves nothing of an argument
        that is not state.
      stacked_copies: the bytes, over all devices, of shards that equal another device's.
      moved: why it has to be transferred before the program runs, if it has to.
      carried: the output that has its structure and shapes, for an argument that is state.
      is_kept_equal: whether that output is proven equal on all devices if the argument is.
      made_at: the line that computed it, for an output that varies.
      is_unused: whether the program does not use it, so that ``jit`` drops it.
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
    is_unused: bool = False
    is_constant: bool = False
    is_only_read: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether all devices hold the same values, as shards or as replicas."""
        return not self.varies_over

    @property
    def lacks_a_reduction(self) -> bool:
        """Whether it varies because an argument does, and nothing in between reduced it."""
        return bool(self.varies_over and self.since) and not str(self.since).startswith("`")

    @property
    def is_split(self) -> bool:
        """Whether it is sharded."""
        return any(self.axes_by_dimension)

    @property
    def is_stacked_copies(self) -> bool:
        """Whether it is sharded, and all shards are equal."""
        return self.is_split and self.is_equal

    @property
    def spec(self) -> str:
        """Its sharding, as a partition spec is written.

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
        """Its dtype and shape, e.g. ``float32[8,4]``."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Exchange(Collective):
    """One collective of the compiled program, with what the audit knows of it.

    If XLA added it, its place and operation are those of the value that it sends; the operation is
    JAX's short name, e.g. ``psum``.

    Attributes:
      is_written: whether the user's code has this collective; otherwise XLA added it.
      seconds: an estimate of the time of one execution; None if there is none.
      argument: the argument that it sends unchanged, if it does.
      merges_with: a number that it shares with collectives that could be combined with it.
    """

    is_written: bool = False
    seconds: float | None = None
    argument: str | None = None
    merges_with: int | None = None

    def __str__(self) -> str:
        """Describes it with its bytes, axis and line."""
        by = f" ({self.operation})" if self.operation else ""
        return (
            f"{self.kind} of {in_bytes(self.payload)} over {self.along} at {place(self.place)}{by}"
        )

    @property
    def seconds_in_a_call(self) -> float | None:
        """The estimate for all its executions in one call."""
        return None if self.seconds is None else self.seconds * self.times_at_least


@dataclasses.dataclass(frozen=True)
class Memory:
    """The bytes that a device needs for a call, as the compiler counts them.

    ``aliases`` are outputs in the memory of donated arguments, counted as arguments and as outputs.
    ``peak`` is XLA's own figure for the most that is live at a time; None if it has none.
    """

    arguments: int
    outputs: int
    temporaries: int
    aliases: int
    peak: int | None = None

    @property
    def total(self) -> int:
        """The peak, at most.

        >>> Memory(arguments=100, outputs=60, temporaries=10, aliases=50).total
        120
        """
        return self.arguments + self.outputs + self.temporaries - self.aliases

    def difference(self) -> str | None:
        """Explains why XLA's peak is not the sum.

        >>> Memory(100, 60, 10, 50, peak=110).difference()
        '10 B less than the sum: not everything is live at once'
        """
        if self.peak is None or self.peak == self.total:
            return None
        more, fresh = self.peak - self.total, self.outputs - self.aliases
        if more < 0:
            return f"{in_bytes(-more)} less than the sum: not everything is live at once"
        if fresh and abs(more - fresh) <= fresh // 8 + 4096:
            return f"{in_bytes(more)} more than the sum: outputs that reuse no argument count twice"
        return f"{in_bytes(more)} more than the sum: alignment, padding and fragmentation"


@dataclasses.dataclass(frozen=True)
class Donation:
    """A donated argument, and why it was not reused if it was not."""

    path: str
    bytes_a_device: int
    is_used: bool
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class MovedInput:
    """An input that was transferred before a call, why, and how often."""

    path: str
    reason: str
    count: int
    bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class History:
    """What a function did up to the audit, or over the run of a program."""

    calls: int = 0  # How often it was called.
    traces: int | None = 0  # How often it was traced; None if that is not counted.
    compiles: int = 0  # How many programs were compiled.
    reasons: tuple[str, ...] = ()  # Why each program was compiled.
    moved: tuple[MovedInput, ...] = ()  # The inputs that were transferred.


@dataclasses.dataclass(frozen=True)
class ShardRead:
    """A line that indexes arrays along their sharded first axis."""

    place: str  # The line.
    index: str  # The index, e.g. ``0``.
    count: int  # How often it ran.
    bytes: int  # The bytes that JAX's own indexing sends, over all devices, in all of these.
    type: str  # The dtype and shape of the first such array.


@dataclasses.dataclass(frozen=True)
class Remark:
    """A finding: what is costly or wrong, and how to fix it."""

    code: str  # Its code, for ``pmapx explain``.
    name: str  # The code's name in words.
    message: str  # What was found, with the arrays and lines.
    fix: str  # What to do.
    function: str | None = None  # The mapped function that it concerns, if any.
    place: str | None = None  # The line that it concerns, if any.
    bytes: int = 0  # What is at stake; findings are ranked by it.


@dataclasses.dataclass(frozen=True)
class AuditedFunction:
    """The audit of one mapped function for one signature of its arguments.

    Attributes:
      name: the function's name.
      kind: the transform, e.g. ``pmapx.pmap``.
      place: where it is defined.
      axis_sizes: the axes of its mesh.
      device_kind: the kind of its devices, as JAX names it.
      arguments: its arguments' leaves.
      outputs: its outputs' leaves.
      exchanges: the collectives of the compiled program.
      memory: what a device needs for a call; None if the compiler does not report it.
      donations: its donated arguments.
      history: what it did up to the audit, or over the run.
      compile_seconds: how long XLA took; None if it was not compiled for the audit.
      findings: what to fix.
      mapped_at: the line that mapped it, if a program was run.
      scaling: its cost per device on other numbers of devices, if requested.
      capacity: the bytes of memory of a device, if that is known.
      grown: the arguments that are larger on the target topology than here.
      exceeded: the compiler's message if the program does not fit into the memory of a device.
      what_if: its cost with FSDP, if requested.
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
    capacity: int | None = None
    grown: tuple[str, ...] = ()
    exceeded: str | None = None
    what_if: WhatIf | None = None

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
        """Those among them that leave its slice."""
        return sum(exchange.between_in_a_call for exchange in self.exchanges)

    @property
    def seconds_in_a_call(self) -> float | None:
        """The estimate for all its collectives in sequence; None if one of them has none."""
        times = [exchange.seconds_in_a_call for exchange in self.exchanges]
        known = [seconds for seconds in times if seconds is not None]
        return sum(known) if len(known) == len(times) else None

    @property
    def stacked_copies(self) -> int:
        """The bytes of arguments in shards that equal another device's."""
        return sum(leaf.stacked_copies for leaf in self.arguments)


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """What ``pmapx.audit`` returns: readable when printed, and as data, JSON or a page.

    Examples:
      >>> import jax, numpy as np, pmapx
      >>> double = pmapx.pmap(lambda x: 2 * x)
      >>> report = pmapx.audit(double, np.ones((jax.device_count(), 3)))
      >>> report.functions[0].memory.arguments
      12

    Attributes:
      functions: each mapped function, once a signature.
      shard_reads: lines that index arrays along their sharded axis, if a program was run.
      findings: what to fix, with the functions' own findings.
      assumptions: the assumptions of the estimates.
      jax_version: the release of JAX.
      topology: the target topology, if it was compiled ahead of time for one.
      command: the program that was run, if any.
      status: its exit status.
      skipped: functions that could not be audited, each with the reason.
    """

    functions: tuple[AuditedFunction, ...]
    shard_reads: tuple[ShardRead, ...] = ()
    findings: tuple[Remark, ...] = ()
    assumptions: tuple[str, ...] = ()
    jax_version: str = ""
    topology: str | None = None
    command: str | None = None
    status: int | None = None
    skipped: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Formats it as tables for a terminal."""
        from pmapx._src.audit.report import as_text

        return as_text.render(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns it as dicts, lists, strings and numbers."""
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return {"format": FORMAT, **content}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes what ``to_dict`` returns to a file."""
        atomic_write.write_output(os.fspath(path), json.dumps(self.to_dict(), indent=2) + "\n")

    def to_html(self, path: str | os.PathLike[str], comparison: Any = None) -> None:
        """Writes a self-contained page with pictures, and what ``compare`` returned."""
        from pmapx._src.audit import as_html

        atomic_write.write_output(os.fspath(path), as_html.render(self, comparison))

    def compare(self, baseline: AuditReport, tolerance: float = 0.02) -> Comparison:
        """Compares it with an earlier report.

        Args:
          baseline: the earlier report, e.g. read with ``from_dict``.
          tolerance: the relative growth of a figure that is accepted.

        Returns:
          What differs, printed as a table; ``worse`` has what grew beyond the tolerance.
        """
        from pmapx._src.audit.report import baseline as baselines

        return baselines.compare(baseline, self, tolerance)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Reads back what ``to_dict`` returned.

        >>> AuditReport.from_dict(AuditReport(()).to_dict()) == AuditReport(())
        True
        """
        # Earlier versions wrote row_reads.
        names = {name: name for name in content} | {"row_reads": "shard_reads"}
        return _built(cls, {names[k]: v for k, v in content.items() if k != "format"})


def _built(kind: Any, value: Any) -> Any:
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
