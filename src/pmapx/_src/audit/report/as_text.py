"""A report as tables for a terminal."""

import signal
from collections.abc import Iterator, Sequence

from pmapx._src.audit.report.audit_report import AuditedFunction, AuditReport, Leaf
from pmapx._src.pages.formatting import (
    arrays,
    counted,
    first,
    in_bytes,
    in_seconds,
    listed,
    place,
    table,
)

SHOWN_LEAVES = 12
"""The largest leaves are listed; the rest are summed up."""
SHOWN_EXCHANGES = 20
SHOWN_MESSAGES = 3
"""Of findings of one code and function; the rest are counted."""


def render(report: AuditReport) -> str:
    sections = ["\n".join(_function(function)) for function in report.functions]
    if not report.functions:
        sections.append(_nothing(report))
    if report.skipped:
        sections.append("\n".join(["not audited:", *(f"  {line}" for line in report.skipped)]))
    if report.shard_reads:
        sections.append("\n".join(_shard_reads(report)))
    if report.functions or report.findings:
        sections.append("\n".join(_findings(report)))
    if report.assumptions and any(function.exchanges for function in report.functions):
        lines = [
            "assumptions of the time estimates:",
            *(f"  {line}" for line in report.assumptions),
        ]
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def _nothing(report: AuditReport) -> str:
    what = report.command or "the program"
    if report.skipped:
        return f"{what}: none of its mapped functions could be audited."
    if report.status:
        how = f"failed with status {report.status}"
        if report.status < 0:
            names = {each.value: each.name for each in signal.Signals}
            how = f"was ended by {names.get(-report.status, f'signal {-report.status}')}"
        return f"{what} {how} before it called a mapped function."
    return f"{what} called no pmapped function and no jit of a shard_map with arrays."


def _function(function: AuditedFunction) -> Iterator[str]:
    mesh = ", ".join(f"{name}={size}" for name, size in function.axis_sizes.items()) or "no mesh"
    where = f" ({place(function.place)})" if function.place else ""
    if function.mapped_at and function.mapped_at != function.place:
        where += f", mapped at {place(function.mapped_at)}"
    yield f"{function.name}{where}: {function.kind} on {mesh} ({function.device_kind})"
    yield f"  {_history(function)}"
    for reason in function.history.reasons[1:]:
        yield f"  compiled again: {reason}"
    for move in function.history.moved:
        yield f"  transferred: {move.path}, {counted(move.count, 'time')}: {move.reason}"
    if function.grown:
        yield f"  larger than here: {listed(list(function.grown))}"
    yield ""
    yield from _indented(_leaf_table("argument", function.arguments))
    yield ""
    yield from _indented(_leaf_table("output", function.outputs))
    if function.exchanges:
        yield ""
        yield from _indented(_exchange_table(function))
    else:
        yield "  no collectives"
    yield ""
    yield from _indented(_memory(function))
    if function.scaling is not None:
        yield ""
        yield "  on more devices, per device:"
        yield from _indented([*function.scaling.rows(), *function.scaling.words()])
    if function.what_if is not None:
        yield ""
        yield from _indented(function.what_if.lines())


def _history(function: AuditedFunction) -> str:
    history = function.history
    counts = [counted(history.calls, "call")]
    if history.traces is not None:
        counts.append(counted(history.traces, "trace"))
    counts.append(counted(history.compiles, "compile"))
    if not history.calls and not history.compiles:
        return "not called before the audit"
    return ", ".join(counts)


def _leaf_table(kind: str, leaves: Sequence[Leaf]) -> list[str]:
    if not leaves:
        return [f"no {kind}s"]
    shown = sorted(range(len(leaves)), key=lambda k: -leaves[k].bytes_a_device)[:SHOWN_LEAVES]
    rows = [
        [leaf.path, leaf.type, leaf.spec, in_bytes(leaf.bytes_a_device), across(leaf)]
        for leaf in (leaves[k] for k in sorted(shown))
    ]
    if len(leaves) > SHOWN_LEAVES:
        rest = [leaf for k, leaf in enumerate(leaves) if k not in shown]
        size = sum(leaf.bytes_a_device for leaf in rest)
        rows.append([f"{len(rest)} more", "", "", in_bytes(size), ""])
    return table([kind, "type", "spec", "per device", "across devices"], rows, right=(3,))


def across(leaf: Leaf) -> str:
    """Describes the shards of an array in a few words.

    >>> across(Leaf("x", (8,), "float32", (1,), (("i",),), 4, varies_over=("i",), since="y"))
    'varies since y'
    >>> across(Leaf("x", (8,), "float32", (1,), (("i",),), 4, ("i",), "y", made_at="train.py:88"))
    'varies since y, made at train.py:88'
    """
    if leaf.is_unused:
        return "not used"
    if leaf.is_stacked_copies:
        return f"equal shards: {in_bytes(leaf.stacked_copies)} of copies"
    if leaf.is_equal:
        return "replicated"
    if leaf.is_split and (leaf.is_constant or leaf.is_only_read):
        why = "its values are constant" if leaf.is_constant else "equal in this call, and only read"
        return f"unknown: {why}"
    at = f", made at {leaf.made_at}" if leaf.lacks_a_reduction and leaf.made_at else ""
    return f"varies since {leaf.since}{at}" if leaf.since else "varies"


def _exchange_table(function: AuditedFunction) -> list[str]:
    rows = []
    crosses = any(exchange.between for exchange in function.exchanges)
    for exchange in function.exchanges[:SHOWN_EXCHANGES]:
        origin = place(exchange.place)
        if exchange.operation:
            origin += f" ({exchange.operation})"
        rows.append(
            [
                exchange.kind,
                exchange.along,
                in_bytes(exchange.payload),
                "?" if exchange.times is None else str(exchange.times),
                in_bytes(exchange.sent_in_a_call),
                *([in_bytes(exchange.between_in_a_call)] if crosses else []),
                in_seconds(exchange.seconds_in_a_call),
                origin,
            ]
        )
    left = function.exchanges[SHOWN_EXCHANGES:]
    if left:
        sent = sum(exchange.sent_in_a_call for exchange in left)
        between = sum(exchange.between_in_a_call for exchange in left)
        sums = [in_bytes(sent), *([in_bytes(between)] if crosses else [])]
        rows.append([f"{len(left)} more", "", "", "", *sums, "", ""])
    to_others = ["to other slices"] if crosses else []
    head = ["collective", "axis", "bytes", "times", "sent per device", *to_others, "time", "from"]
    return table(head, rows, right=range(2, len(head) - 1))


def _memory(function: AuditedFunction) -> Iterator[str]:
    memory = function.memory
    if function.exceeded is not None:
        yield f"memory per device: {function.exceeded.splitlines()[0]}"
    elif memory is None:
        yield "memory per device: not reported by this backend"
    else:
        yield (
            f"memory per device: {in_bytes(memory.total)} = "
            f"{in_bytes(memory.arguments)} arguments + {in_bytes(memory.outputs)} outputs + "
            f"{in_bytes(memory.temporaries)} temporaries - "
            f"{in_bytes(memory.aliases)} reused"
        )
        if memory.peak is not None and memory.peak != memory.total:
            yield f"XLA's own peak: {in_bytes(memory.peak)}, {memory.difference()}"
        if function.capacity is not None:
            share = max(memory.total, memory.peak or 0) / function.capacity
            yield (f"of a {function.device_kind}: {share:.1%} of {in_bytes(function.capacity)}")
    used = [donation.path for donation in function.donations if donation.is_used]
    if used:
        yield f"donated and reused: {arrays(used)}"
    for donation in function.donations:
        if not donation.is_used:
            yield f"donated, not reused: {donation.path}: {donation.reason}"


def _shard_reads(report: AuditReport) -> Iterator[str]:
    yield "arrays indexed along their sharded axis"
    rows = [
        [place(read.place), f"[{read.index}]", str(read.count), read.type, in_bytes(read.bytes)]
        for read in report.shard_reads
    ]
    head = ["line", "index", "times", "of", "JAX sends"]
    yield from _indented(table(head, rows, right=(2, 4)))


def _findings(report: AuditReport) -> Iterator[str]:
    if not report.findings:
        yield "no findings"
        return
    yield f"{counted(len(report.findings), 'finding')} (pmapx explain CODE for details)"
    groups: dict[tuple[str, str | None, str], list[str]] = {}
    for remark in report.findings:
        groups.setdefault((remark.code, remark.function, remark.fix), []).append(remark.message)
    for (code, function, fix), messages in groups.items():
        message, *others = first(messages, SHOWN_MESSAGES)
        yield f"  {code} {f'{function}: ' if function else ''}{message}"
        for line in (*others, f"fix: {fix}"):
            yield f"         {line}"


def _indented(lines: Sequence[str] | Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield f"  {line}" if line else ""
