"""The limits that a test sets, and what of an audited function exceeds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from pmapx._src.audit.hlo.collectives import counts
from pmapx._src.audit.report.audit_report import AuditedFunction
from pmapx._src.pages.formatting import counted, in_bytes, listed, parsed_bytes, place


class BudgetExceeded(AssertionError):
    """A function compiles, sends or holds more than a test allows."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a function may cost; None for no limit."""

    compiles: int | None = None  # How many programs of it may be compiled.
    # By kind, how many may run in a call; other kinds may not run at all.
    collectives: Mapping[str, int] | None = None
    # What a device may send in a call, as a number or as ``"2MiB"``.
    bytes: str | int | None = None
    memory: str | int | None = None  # What a device may need for a call.
    # The topology to compile for; None for the devices of this process.
    topology: str | None = None
    function: str | None = None  # The name of the function that it is for; None for all.

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Budget:
        """Checks the names of options."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise TypeError(f"no limit {name!r}; use {', '.join(known)}")
        for name in ("bytes", "memory"):
            if options.get(name) is not None:
                parsed_bytes(options[name])
        return cls(**options)

    def exceeded(self, function: AuditedFunction) -> Iterator[str]:
        """Yields what exceeds the budget, with the collectives and lines that cause it."""
        if self.function is not None and function.name != self.function:
            return
        of = f"{function.name} ({place(function.place)})" if function.place else function.name
        history = function.history
        if self.compiles is not None and history.compiles > self.compiles:
            reasons = listed(list(dict.fromkeys(history.reasons[1:]))) or "a first call"
            yield f"{of}: {history.compiles} compiles, {self.compiles} allowed: {reasons}"
        if self.collectives is not None:
            yield from self._collectives(function, of)
        if self.bytes is not None and function.sent_in_a_call > parsed_bytes(self.bytes):
            yield (
                f"{of}: a device sends {in_bytes(function.sent_in_a_call)} in a call, {self.bytes} "
                f"allowed: {_causes(function)}"
            )
        if self.memory is not None:
            yield from self._memory(function, of)

    def _collectives(self, function: AuditedFunction, of: str) -> Iterator[str]:
        for kind, count in counts(function.exchanges).items():
            allowed = (self.collectives or {}).get(kind, 0)
            if count > allowed:
                causes = _causes(function, kind)
                yield f"{of}: {counted(count, kind)} in a call, {allowed} allowed: {causes}"

    def _memory(self, function: AuditedFunction, of: str) -> Iterator[str]:
        if function.exceeded is not None:
            yield f"{of}: {function.exceeded.splitlines()[0]}"
        memory = function.memory
        if memory is not None and memory.total > parsed_bytes(self.memory or 0):
            leaves = sorted(function.arguments, key=lambda leaf: -leaf.bytes_a_device)[:3]
            held = ", ".join(f"{leaf.path} {in_bytes(leaf.bytes_a_device)}" for leaf in leaves)
            yield (
                f"{of}: a device needs {in_bytes(memory.total)}, {self.memory} allowed: "
                f"{in_bytes(memory.temporaries)} of temporaries, {held}"
            )


def _causes(function: AuditedFunction, kind: str | None = None) -> str:
    """Names the collectives and their lines, the largest first."""
    found = [each for each in function.exchanges if kind in (None, each.kind)]
    found.sort(key=lambda each: -each.sent_in_a_call)
    return listed(
        [f"{each}{'' if each.times == 1 else f', {each.times or chr(63)} times'}" for each in found]
    )


def check(budget: Budget, functions: tuple[AuditedFunction, ...]) -> None:
    """Raises an error if functions exceed a budget."""
    lines = [line for function in functions for line in budget.exceeded(function)]
    if lines:
        raise BudgetExceeded("\n".join(["over budget:", *(f"  {line}" for line in lines)]))
