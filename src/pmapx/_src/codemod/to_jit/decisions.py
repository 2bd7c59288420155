"""What the first run showed, for the maps of the source: which are batch-parallel, and why not."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pmapx._src.codemod.to_jit.candidates import Candidate
from pmapx._src.watch.tree_copies import TreeCopy

Span = tuple[str, int, int, int, int]
# By name: the position of the axis name.
COLLECTIVES = {
    "psum": 1, "pmean": 1, "pmax": 1, "pmin": 1, "all_gather": 1, "psum_scatter": 1,
    "ppermute": 1, "pshuffle": 1, "all_to_all": 1, "axis_index": 0, "axis_size": 0,
}  # fmt: skip
# What a collective's name in a jaxpr is to the function that makes it.
_MADE_BY = {
    "psum": ("psum",), "psum_invariant": ("psum",), "psum2": ("psum",), "pmean": ("pmean", "psum"),
    "pmax": ("pmax",), "pmin": ("pmin",), "all_gather": ("all_gather",),
    "all_gather_invariant": ("all_gather",), "reduce_scatter": ("psum_scatter",),
    "axis_index": ("axis_index",),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Replaced:
    """A call of a collective in the source, and what takes its place: a power of n times it."""

    span: Span
    name: str
    power: int
    is_tree: bool
    is_number: bool
    meaning: str


@dataclasses.dataclass(eq=False)
class Decision:
    """What is known of one map of the source.

    Attributes:
      candidate: the map.
      axis: the name of the mapped axis.
      reasons: why it keeps ``jax.shard_map``.
      replaced: the calls of collectives in the source that it reaches.
      libraries: lines of the source that reach a collective of a library.
      reached: the functions of the source that it reaches, by file and first line.
      stacked: positions of arguments with a leading device axis, as the body takes ``x[0]`` of.
      batch_axes: of these without it, the axis of the examples: 1 after an axis of steps.
      per_device: positions of arguments that have one value for each device, as a key.
      results: by position, what results with a leading device axis are over the global batch.
      elsewhere: positions of arguments that come with another sharding.
      jit_spans: where the jitted function around it is made.
      calls: how many calls gave samples.
      has_keywords: whether a call passes arguments by keyword, for which jit has no shardings.
      is_placed: whether all arguments come with the sharding of the map.
      compared: what was compared in the run with ``jax.jit``, by process.
      cost: what a call costs with ``jax.shard_map``.
      replicated: what it costs with ``jax.jit`` and replicated state, if that is sharded now.
      notes: what else to report.
    """

    candidate: Candidate
    axis: str = ""
    reasons: list[str] = dataclasses.field(default_factory=list)
    replaced: dict[Span, Replaced] = dataclasses.field(default_factory=dict)
    libraries: set[tuple[str, int, str]] = dataclasses.field(default_factory=set)
    reached: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    stacked: set[int] = dataclasses.field(default_factory=set)
    batch_axes: set[int] = dataclasses.field(default_factory=set)
    per_device: set[int] = dataclasses.field(default_factory=set)
    results: dict[int, set[str]] = dataclasses.field(default_factory=dict)
    elsewhere: set[int] = dataclasses.field(default_factory=set)
    jit_spans: set[Span] = dataclasses.field(default_factory=set)
    calls: int = 0
    has_keywords: bool = False
    is_placed: bool = True
    compared: Sequence[Mapping[str, Any]] = ()
    cost: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    replicated: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_constrained(self) -> bool:
        """Whether its arguments are sharded inside of it: jit cannot do that where it is made."""
        is_late = self.candidate.is_late and (not self.is_placed or bool(self.results))
        return is_late or self.has_keywords

    @property
    def name(self) -> str:
        return self.candidate.name

    def refuse(self, why: str) -> None:
        if why not in self.reasons:
            self.reasons.append(why)


def site_name(file: str, line: int, column: int) -> str:
    """Returns what the samples of a place in the tree are kept by."""
    return hashlib.blake2b(f"{file}:{line}:{column}".encode(), digest_size=8).hexdigest()


def decisions(
    found: Sequence[Candidate], records: Sequence[Mapping[str, Any]], copy: TreeCopy
) -> list[Decision]:
    """Returns what is known of each map, from the records of each process of a run."""
    made = []
    for candidate in found:
        decision = Decision(candidate)
        for process in records:
            _read(decision, process, copy.original)
        if candidate.obstacle:
            decision.refuse(candidate.obstacle)
        if not decision.jit_spans and not decision.reasons:
            decision.refuse("the run does not call it")
        made.append(decision)
    return made


def _read(decision: Decision, process: Mapping[str, Any], local: Callable[[str], str]) -> None:
    candidate = decision.candidate
    for record in process["maps"]:
        file, line, *_ = record["span"]
        if not record["traces"] or not candidate.covers(local(file), line):
            continue
        decision.axis = record["axis"] or ""
        for reason in record["reasons"]:
            decision.refuse(reason)
        if record["devices"] != process["device_count"]:
            decision.refuse("its mesh has only some of the devices")
        elif record["devices"] == 1:
            decision.refuse("the run has one device, where nothing can be compared: see --devices")
        if not decision.reasons:
            _read_collectives(decision, record, local)
        decision.stacked |= set(record["stacked"])
        decision.per_device |= set(record["per_device"])
        decision.batch_axes |= set(record["batch_axes"])
        for position, kinds in record["results"].items():
            decision.results.setdefault(int(position), set()).update(kinds)
        decision.reached |= {(local(path), first) for path, first in record["reached"]}
    for jit in process["jits"]:
        file, line, *_ = jit["span"]
        if not candidate.covers(local(file), line):
            continue
        if len(jit["maps"]) > 1:
            decision.refuse("its jitted function contains another shard_map")
        if jit["problem"]:
            decision.refuse(jit["problem"])
        decision.has_keywords |= jit["has_keywords"]
        decision.is_placed &= jit["is_placed"]
        decision.jit_spans.add((local(file), *jit["span"][1:]))
        decision.elsewhere |= set(jit["elsewhere"])
        decision.calls = max(decision.calls, jit["calls"])
        decision.cost = jit["cost"]


def _read_collectives(decision: Decision, record: Mapping[str, Any], local: Any) -> None:
    size = record["devices"]
    by_span: dict[tuple[Any, ...], list[Mapping[str, Any]]] = collections.defaultdict(list)
    for call in record["calls"]:
        span = (local(call["span"][0]), *call["span"][1:])
        if call["library"]:
            decision.libraries.add((span[0], span[1], call["library"]))
        else:
            by_span[(span, call["name"])].append(call)
    for (span, name), calls in by_span.items():
        where = f"`{name}` at {os.path.basename(span[0])}:{span[1]}"
        meant = _meant(name, span, calls, record["collectives"], local, size)
        if isinstance(meant, str):
            decision.refuse(f"{where}: {meant}")
            continue
        power, meaning = meant
        is_number = all(call["constant"] is not None for call in calls)
        is_tree = any(call["is_tree"] for call in calls)
        decision.replaced[span] = Replaced(span, name, power, is_tree, is_number, meaning)


def _meant(
    name: str,
    span: tuple[Any, ...],
    calls: Sequence[Mapping[str, Any]],
    collectives: Sequence[Mapping[str, Any]],
    local: Any,
    size: int,
) -> tuple[int, str] | str:
    """Returns by which power of n the operand of a call is multiplied, and why; or why not."""
    if name == "axis_size":
        return 1, ""
    if name in ("psum", "pmean") and all(call["constant"] is not None for call in calls):
        return _of_numbers(name, calls, size)
    here = [
        each
        for each in collectives
        if local(each["file"]) == span[0] and each["line"] == span[1]
        if each["column"] in (None, span[2])
        if name in _MADE_BY.get(each["name"], ()) and not each["library"]
    ]
    if not here:
        if any(call["constant"] is not None for call in calls):
            return "it is of a number in one call, and of an array in another"
        return "its meaning over the global batch is not known"
    powers = set()
    for each in here:
        if each["replacement"] == "ZERO":
            return 0, "axis_index is 0: over the global batch, no result depends on the device"
        if each["replacement"] == "KEEP":
            return str(each["meaning"])
        # A psum that is divided by n in its place is called a pmean in the verdict.
        extra = name == "psum" and each["name"] == "pmean"
        powers |= {power + extra for power in each["powers"]}
    if len(powers) != 1:
        return "it is multiplied by factors that differ, " + "; ".join(e["meaning"] for e in here)
    meaning = here[0]["meaning"]
    if name == "psum" and here[0]["name"] == "pmean":
        meaning = meaning.replace("pmean", "psum", 1).replace(" is ", " is n times ", 1)
    return powers.pop(), meaning


def _of_numbers(name: str, calls: Sequence[Mapping[str, Any]], size: int) -> tuple[int, str] | str:
    """The same of a number, which no jaxpr has: it may be the batch size, or not depend on it."""
    if name == "pmean":
        return 0, ""
    mapped = max(call["constant"] for call in calls if call["axis_size"] == size)
    alone = max((c["constant"] for c in calls if c["axis_size"] == 1), default=mapped)
    if alone == size * mapped:
        return 0, "it is counted over the global batch"
    return (1, "") if alone == mapped else "it is of a number that depends on the number of devices"
