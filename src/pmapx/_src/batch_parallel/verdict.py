"""Whether a mapped body equals a plain jitted function over the global batch, and why not."""

import dataclasses
import enum
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr

from pmapx._src.batch_parallel import collectives, traces
from pmapx._src.batch_parallel.interpreter import Interpreter, Path, Record
from pmapx._src.batch_parallel.kinds import (
    SAME,
    Reason,
    Relation,
    UnprovenError,
    Value,
    shard,
    unknown,
)
from pmapx._src.batch_parallel.steps import description
from pmapx._src.batch_parallel.traces import Traces
from pmapx._src.replication import jaxprs, source_locations


class Replacement(enum.Enum):
    """What a collective is replaced with in a function over the global batch."""

    IDENTITY = "its operand"
    TIMES_N = "the number of devices times its operand"
    OVER_N = "its operand divided by the number of devices"
    CONSTANT_N = "the number of devices"
    MIXED = "its operand, times a factor that differs between leaves"
    ZERO = "zero"
    KEEP = "nothing: it stays"


@dataclasses.dataclass(frozen=True)
class Collective:
    """The collectives of one expression of the user's code."""

    file: str | None  # The path of the file; None: no line of the user's is known.
    line: int | None  # The number of the line.
    column: int | None  # Where it starts in the line, if that is known.
    # Of the primitive; ``pmean`` for a psum that is divided by n there; ``axis size`` for a use of
    # the number of devices, as by ``psum(1)``, which is itself in no jaxpr.
    name: str
    replacement: Replacement  # What it becomes.
    # For each operand, the power of n by which it is multiplied. Those of ``pmean`` include the
    # division; ``psum`` in its place has one more.
    powers: tuple[int, ...]
    meaning: str  # The same in words.
    # The file of a library that has it, as a batch norm with an axis name.
    library: str | None = None


@dataclasses.dataclass(frozen=True)
class Output:
    """A leaf of what a body returns."""

    # The axis along which it is sharded; None: it is equal on all devices.
    batch_axis: int | None = None
    # Equal on all devices and computed from the batch, not from replicated arguments.
    is_global: bool = False
    reason: Reason | None = None  # Why it has no version over the global batch, if so.


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is known of a body."""

    outputs: tuple[Output, ...]  # For each leaf of what it returns.
    collectives: tuple[Collective, ...]  # Those over the mapped axis, by their place in the source.
    axis_name: Hashable  # Of the mapped axis.
    axis_size: int  # The number of devices.
    # The jaxprs; None where the body cannot be traced for the global batch.
    traces: Traces | None = None
    # By path of a collective, the powers of n for its operands.
    powers: dict[Path, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    # By path and operand, the constants that come from the number of devices.
    constants: dict[tuple[Path, int], Any] = dataclasses.field(default_factory=dict)

    @property
    def is_batch_parallel(self) -> bool:
        return self.traces is not None and not self.reasons

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why not, each once."""
        return tuple(dict.fromkeys(each.reason for each in self.outputs if each.reason))


def decide(
    body: Callable[..., Any],
    arguments: Sequence[Any],
    batch_axes: Sequence[Any],
    *,
    axis_name: Hashable,
    axis_size: int,
) -> Verdict:
    """Decides whether a mapped body is a function of the global batch.

    It is if the same code without its collectives returns the same, up to rounding, for arguments
    whose shards are concatenated along their batch axes. What is not known to be so is rejected.

    Args:
      body: the function that each device runs.
      arguments: as a device takes them: pytrees of arrays or of ``jax.ShapeDtypeStruct``.
      batch_axes: for each argument, or for parts of it: the axis along which devices hold shards
        of the batch; None: it is equal on all devices; ``PER_DEVICE``: it differs between them and
        has no such axis, as a key for each device.
      axis_name: of the mapped axis.
      axis_size: the number of devices. For 1, two are assumed: all would be equal.

    >>> import jax, numpy as np
    >>> def body(w, x):
    ...     return w - jax.lax.pmean(jax.grad(lambda w: (x @ w).mean())(w), "i")
    >>> w, x = np.ones(3, np.float32), np.ones((4, 3), np.float32)
    >>> verdict = decide(body, (w, x), (None, 0), axis_name="i", axis_size=8)
    >>> verdict.is_batch_parallel, verdict.collectives[0].name
    (True, 'pmean')
    """
    n = max(axis_size, 2)
    verdict = _decided(body, arguments, batch_axes, axis_name, n, 1)
    if not verdict.is_batch_parallel:
        return verdict
    try:
        larger = _decided(body, arguments, batch_axes, axis_name, n, 2)
    except Exception:  # Only these sizes can be traced.
        return verdict
    same = (larger.outputs, larger.powers) == (verdict.outputs, verdict.powers)
    if larger.traces is None or same:
        return verdict
    why = ": ".join(["differs with the batch size", *map(str, larger.reasons[:1])])
    return dataclasses.replace(verdict, outputs=(Output(reason=Reason("the body", None, why)),))


def _decided(
    body: Callable[..., Any],
    arguments: Sequence[Any],
    batch_axes: Sequence[Any],
    axis_name: Hashable,
    n: int,
    growth: int,
) -> Verdict:
    try:
        found = traces.trace(body, arguments, batch_axes, axis_name, n, growth)
        walk = Interpreter(n, axis_name)
        inputs = [_argument(found, index) for index in range(len(found.names))]
        results = walk.jaxpr((found.local, found.alone, found.global_), inputs, ())
    except UnprovenError as error:
        local = getattr(error, "local", None)
        reason = Reason("the body", None, str(error))
        reason = reason if local is None else _blamed(local.jaxpr, reason)
        return Verdict((Output(reason=reason),), (), axis_name, n)
    lines = source_locations.lines_behind(found.local.jaxpr)
    outputs = tuple(map(_output, _output_names(found.out_tree), lines, results))
    powers = {at: record.powers for at, record in walk.records.items() if not record.reason}
    blamed = [output.reason for output in outputs if output.reason]
    by_place = _by_place(walk, blamed)
    return Verdict(outputs, by_place, axis_name, n, found, powers, dict(walk.constants))


def _argument(found: Traces, index: int) -> Value:
    batch_axis = found.batch_axes[index]
    if batch_axis is None:
        return Value(SAME)
    if isinstance(batch_axis, int):
        return Value(shard(batch_axis), depends_on_batch=True)
    line = source_locations.first_use(found.local.jaxpr, index)
    why = "differs between devices and has no batch axis" + (f" (used at {line})" if line else "")
    return Value(unknown(Reason(found.names[index], None, why)), depends_on_batch=True)


def _output_names(tree: Any) -> list[str]:
    indexed = jax.tree.unflatten(tree, range(tree.num_leaves))
    paths, _ = jax.tree_util.tree_flatten_with_path(indexed)
    return [f"output{jax.tree_util.keystr(path)}" for path, _ in paths]


def _output(name: str, line: str | None, value: Value) -> Output:
    kind = value.kind
    if kind == SAME or (value.is_zero and kind.relation is Relation.SAME):
        return Output(is_global=value.depends_on_batch)
    if kind.relation is Relation.SHARD and kind.segments <= 1 and (not kind.scale or value.is_zero):
        return Output(batch_axis=kind.axis)
    if kind.reason is not None:
        return Output(reason=kind.reason)
    why = f"is {description(value)}"
    if kind.relation is Relation.SHARD and kind.segments > 1:
        why = "has its examples in a different order over the global batch"
    elif kind.relation in (Relation.SUM, Relation.MAX, Relation.MIN):
        why += ", which no collective combines"
    return Output(reason=Reason(name, line, why))


def _blamed(local: Jaxpr, otherwise: Reason) -> Reason:
    """Returns the reason of a body whose traces differ: the first collective by device, if any."""
    for eqn in jaxprs.equations(local):
        if collectives.RULES.get(eqn.primitive.name) in _BY_DEVICE:
            line = source_locations.line_of(eqn)
            return Reason(f"`{eqn.primitive.name}`", line, "depends on which device holds what")
    return otherwise


_BY_DEVICE = (collectives.axis_index, collectives.between_devices)
_Place = source_locations.Location


def _by_place(walk: Interpreter, blamed: Sequence[Reason]) -> tuple[Collective, ...]:
    divided = {
        source_locations.location_of(eqn)
        for eqn in walk.size_uses.values()
        if eqn.primitive.name == "div"
    }
    groups: dict[tuple[_Place, str], list[Record]] = {}
    for record in walk.records.values():
        place, name = record.place, str(record.eqn.primitive.name)
        if name.startswith("psum") and place in divided:
            name = "pmean"
        groups.setdefault((place, name), []).append(record)
    averaged = {place for place, name in groups if name == "pmean"}
    found = [
        dataclasses.replace(
            _collective(*key, records, blamed), library=source_locations.library_of(records[0].eqn)
        )
        for key, records in groups.items()
    ]
    sizes = dict.fromkeys(map(source_locations.location_of, walk.size_uses.values()))
    return tuple(found) + tuple(
        Collective(*place, "axis size", Replacement.CONSTANT_N, (), "the number of devices")
        for place in sizes
        if place not in averaged
    )


def _collective(
    place: _Place, name: str, records: Sequence[Record], blamed: Sequence[Reason]
) -> Collective:
    reason = next((record.reason for record in records if record.reason), None)
    if name == "axis_index":
        reason = next((each for each in blamed if each.operation == f"`{name}`"), None)
    if reason is not None:
        return Collective(*place, name, Replacement.KEEP, (), str(reason))
    if name == "axis_index":
        meaning = "zero: positions are those in the global batch"
        return Collective(*place, name, Replacement.ZERO, (), meaning)
    powers = tuple(p - (name == "pmean") for record in records for p in record.powers)
    values = [value for record in records for value in record.values]
    replacement = Replacement.MIXED
    if len(set(powers)) == 1:
        sign = (powers[0] > 0) - (powers[0] < 0)
        replacement = {
            0: Replacement.IDENTITY, 1: Replacement.TIMES_N, -1: Replacement.OVER_N
        }[sign]  # fmt: skip
    meanings = dict.fromkeys(map(_meaning, [name] * len(values), values, powers))
    return Collective(*place, name, replacement, powers, "; ".join(meanings))


def _meaning(name: str, value: Value, power: int) -> str:
    kind = value.kind
    factor = {0: "", 1: "n times ", -1: "1/n of "}.get(power, f"n**{power} times ")
    if name in ("pmax", "pmin"):
        of = "" if kind.relation is Relation.SAME else f"the {name[1:]} over the global batch"
        return f"{name} of {description(value)} is {of or 'that value'}"
    if kind.relation is Relation.SUM and kind.scale in (0, 1):
        return f"{name} of {description(value)} is {factor}the {('sum', 'mean')[kind.scale]}" + (
            " over the global batch"
        )
    if name.startswith("all_gather"):
        return f"{name} of {description(value)} is {factor}the global array itself"
    return f"{name} of {description(value)} is {factor}that value"
