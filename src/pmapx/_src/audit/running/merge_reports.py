"""The reports of a program's processes, merged into one."""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any

from pmapx._src.audit import findings
from pmapx._src.audit.report.audit_report import (
    AuditedFunction,
    AuditReport,
    History,
    Leaf,
    MovedInput,
    ShardRead,
)
from pmapx._src.watch import record_files


def of_records(
    records: str | os.PathLike[str], command: str | None = None, status: int | None = None
) -> AuditReport:
    """Returns the records of all processes as one report.

    A function that several processes called with the same signature is in it once, with the calls
    of all of them.
    """
    reports = [AuditReport.from_dict(found) for found in record_files.read(records, "audit")]
    every = [function for report in reports for function in report.functions]
    functions = mapped_ones(once_each(every))
    reads: dict[tuple[str, str], ShardRead] = {}
    for report in reports:
        for read in report.shard_reads:
            before = reads.get((read.place, read.index))
            reads[read.place, read.index] = read if before is None else dataclasses.replace(
                before, count=before.count + read.count, bytes=before.bytes + read.bytes
            )  # fmt: skip
    merged = AuditReport(
        functions=tuple(functions),
        shard_reads=tuple(reads.values()),
        assumptions=tuple(dict.fromkeys(line for r in reports for line in r.assumptions)),
        jax_version=next((report.jax_version for report in reports), ""),
        topology=next((report.topology for report in reports), None),
        command=command,
        status=status,
        skipped=tuple(dict.fromkeys(line for r in reports for line in r.skipped)),
    )
    return dataclasses.replace(merged, findings=findings.all_in(merged))


def mapped_ones(functions: Sequence[AuditedFunction]) -> list[AuditedFunction]:
    """Leaves out jitted functions of one device, unless there are no others."""
    mapped = [each for each in functions if each.kind != "jit" or each.device_count > 1]
    return mapped or list(functions)


def once_each(
    functions: Sequence[AuditedFunction], reason_for_more: str | None = None
) -> list[AuditedFunction]:
    """Merges functions of one name, line, signature and communication, and adds their histories.

    ``reason_for_more`` is why the second of them was compiled; processes that compile one program
    each need none.
    """
    kept: dict[Any, AuditedFunction] = {}
    for function in functions:
        leaves = (_types(function.arguments), _types(function.outputs))
        key = (function.name, function.place, function.mapped_at, *leaves, function.exchanges)
        if key not in kept:
            kept[key] = function
            continue
        history = _added(kept[key].history, function.history, reason_for_more)
        added = dataclasses.replace(kept[key], history=history)
        kept[key] = dataclasses.replace(added, findings=findings.about(added))
    return list(kept.values())


def _types(leaves: Sequence[Leaf]) -> tuple[tuple[str, str, str], ...]:
    return tuple((leaf.path, leaf.type, leaf.spec) for leaf in leaves)


def _added(one: History, other: History, reason_for_more: str | None) -> History:
    traces = None if one.traces is None or other.traces is None else one.traces + other.traces
    first = (reason_for_more,) if reason_for_more and other.reasons else ()
    return History(
        calls=one.calls + other.calls,
        traces=traces,
        compiles=one.compiles + other.compiles,
        reasons=(*one.reasons, *first, *other.reasons[1:]),
        moved=once_each_move([*one.moved, *other.moved]),
    )


def once_each_move(moves: Iterable[MovedInput]) -> tuple[MovedInput, ...]:
    """Merges the transfers of one input for one reason, and adds their counts."""
    merged: dict[tuple[str, str], MovedInput] = {}
    for move in moves:
        before = merged.get((move.path, move.reason))
        count = move.count + (before.count if before else 0)
        merged[move.path, move.reason] = dataclasses.replace(move, count=count)
    return tuple(merged.values())
