"""A report compared with an earlier one: what grew beyond a tolerance.

Nothing here needs JAX, like the rest of a report.
"""

import collections
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from pmapx._src.audit.hlo.collectives import counts
from pmapx._src.audit.report.audit_report import AuditedFunction, AuditReport
from pmapx._src.pages.formatting import in_bytes, place, table
from pmapx._src.source.rewriting import atomic_write

TOLERANCE = 0.02
_BYTES = ("sent", "memory", "to other slices")


@dataclasses.dataclass(frozen=True)
class Change:
    """A figure of a function that is not what it was.

    Attributes:
      function: the function's name.
      what: the figure, e.g. ``memory`` or ``sent on v5e:16x16``.
      before: the figure in the baseline; None if it had none.
      after: the figure now; None if it is gone.
      is_worse: whether it grew beyond the tolerance.
      place: the line to look at: that of a collective, or of the function.
      cause: what causes it, in words, if that is known.
    """

    function: str
    what: str
    before: int | None
    after: int | None
    is_worse: bool
    place: str | None = None
    cause: str | None = None

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The change as text: the function, the figure, before, after, and by how much."""
        is_size = self.what.startswith(_BYTES)

        def shown(value: int | None) -> str:
            return "-" if value is None else in_bytes(value) if is_size else f"{value:,}"

        by = ""
        if self.before and self.after is not None:
            by = f"{(self.after - self.before) / self.before:+.0%}"
        return self.function, self.what, shown(self.before), shown(self.after), by

    def __str__(self) -> str:
        """Describes the change in one line."""
        function, what, before, after, by = self.cells
        cause = f": {self.cause}" if self.cause else ""
        return f"{function}: {what} {before} -> {after}{f' ({by})' if by else ''}{cause}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What differs between two reports; prints as a table.

    Examples:
      >>> print(Comparison((Change("step", "sent", 1024, 2048, True, "train.py:9"),)))
      function  figure  baseline       now  change
      step      sent    1.00 KiB  2.00 KiB  +100%   worse, train.py:9

    Attributes:
      changes: every figure that differs, the worse ones first.
      tolerance: the relative growth that is accepted.
    """

    changes: tuple[Change, ...]
    tolerance: float = TOLERANCE

    @property
    def worse(self) -> tuple[Change, ...]:
        """The figures that grew beyond the tolerance."""
        return tuple(change for change in self.changes if change.is_worse)

    def __str__(self) -> str:
        """Formats it as a table."""
        if not self.changes:
            return "the same as the baseline"
        rows = []
        for change in self.changes:
            notes = [
                "worse" if change.is_worse else "",
                place(change.place) if change.place else "",
            ]
            notes.append(change.cause or "")
            rows.append([*change.cells, ", ".join(filter(None, notes))])
        head = ["function", "figure", "baseline", "now", "change", ""]
        return "\n".join(table(head, rows, right=(2, 3)))


def read(path: str | os.PathLike[str]) -> AuditReport:
    """Reads a baseline, as ``to_json`` writes a report; raises ValueError if the file is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return AuditReport.from_dict(json.load(file))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{os.fspath(path)} is not a report of pmapx audit: {error}") from None


def write(report: AuditReport, path: str | os.PathLike[str]) -> None:
    """Writes a report as a baseline that other machines can use: paths are relative."""
    content = json.dumps(_relative(report.to_dict()), indent=1)
    atomic_write.write_output(os.fspath(path), content + "\n")


def _relative(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _relative(held, name) for name, held in value.items()}
    if isinstance(value, list):
        return [_relative(held) for held in value]
    return place(value) if key in ("place", "mapped_at", "made_at") and value else value


def compare(baseline: AuditReport, report: AuditReport, tolerance: float = TOLERANCE) -> Comparison:
    """Compares the figures of each function, here and on the topologies of its scaling table."""
    before, after = _by_name(baseline), _by_name(report)
    changes: list[Change] = []
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if new is None:
            changes.append(Change(name, "audited", 1, None, True, cause="it is no longer called"))
            continue
        figures = {} if old is None else _figures(old)
        for what, value in _figures(new).items():
            known = figures.pop(what, None if old is None or " on " in what else 0)
            if known == value or (old is not None and known is None):
                continue
            is_worse = known is not None and value > known * (1 + tolerance)
            where, cause = _cause(old, new, what) if is_worse else (new.place, None)
            changes.append(Change(name, what, known, value, is_worse, where, cause))
        changes += [
            Change(name, what, was, 0, False, new.place)
            for what, was in figures.items()
            if " on " not in what  # A topology that was not asked for now.
        ]
    changes.sort(key=lambda change: not change.is_worse)
    return Comparison(tuple(changes), tolerance)


def _by_name(report: AuditReport) -> dict[str, AuditedFunction]:
    """Names the functions; the second signature of one is ``step (2)``."""
    named: dict[str, AuditedFunction] = {}
    seen: collections.Counter[str] = collections.Counter()
    for function in report.functions:
        seen[function.name] += 1
        number = seen[function.name]
        named[function.name if number == 1 else f"{function.name} ({number})"] = function
    return named


def _figures(function: AuditedFunction) -> dict[str, int]:
    history, memory = function.history, function.memory
    found = {
        "compiles": history.compiles,
        "traces": history.traces or 0,
        "transferred inputs": len(history.moved),
        **{f"{kind}s": count for kind, count in counts(function.exchanges).items()},
        "sent": function.sent_in_a_call,
        "to other slices": function.between_in_a_call,
        "memory": 0 if memory is None else memory.total,
    }
    for point in () if function.scaling is None else function.scaling.points:
        found[f"collectives on {point.topology}"] = point.collectives
        found[f"sent on {point.topology}"] = point.sent
        found[f"memory on {point.topology}"] = point.memory
    return {what: value for what, value in found.items() if value}


def _cause(
    old: AuditedFunction | None, new: AuditedFunction, what: str
) -> tuple[str | None, str | None]:
    """Returns the line that a figure grew at, and why, as far as that is known."""
    if what.startswith(("compiles", "traces")) and len(new.history.reasons) > 1:
        return new.place, "; ".join(dict.fromkeys(new.history.reasons[1:]))
    if what == "transferred inputs":
        return new.place, "; ".join(f"{move.path}: {move.reason}" for move in new.history.moved)
    sent = _sent_by_line(new)
    known: Mapping[Any, int] = {} if old is None else _sent_by_line(old)
    if what.startswith(("sent", "to other", "collectives")) or what.endswith("s"):
        grown = [key for key in sent if sent[key] > known.get(key, 0)]
        kinds = [key for key in grown if what == f"{key[0]}s"] or grown
        if kinds:
            kind, operation, where = max(kinds, key=lambda key: sent[key] - known.get(key, 0))
            by = f" for {operation}" if operation else ""
            return where or new.place, f"{kind}{by}"
    return new.place, None


def _sent_by_line(function: AuditedFunction) -> dict[tuple[str, str | None, str | None], int]:
    """Returns the bytes that each line sends; a line that moved in its file is another one."""
    sent: collections.Counter[tuple[str, str | None, str | None]] = collections.Counter()
    for exchange in function.exchanges:
        where = place(exchange.place) if exchange.place else None
        sent[exchange.kind, exchange.operation, where] += exchange.sent_in_a_call
    return dict(sent)
