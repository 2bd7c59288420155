"""What the functions that a test calls do: the listener of an audit, for one block at a time."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pmapx._src.audit.report.audit_report import AuditedFunction
from pmapx._src.audit.running.audited_calls import AuditedCalls
from pmapx._src.audit.running.listener import AuditListener
from pmapx._src.audit.running.request import Request
from pmapx._src.watch.transforms import Call, MadeFunction, attach


class Seen:
    """The functions that were called in a block, audited; known when it has ended."""

    def __init__(self) -> None:
        self.functions: tuple[AuditedFunction, ...] = ()
        self.skipped: tuple[str, ...] = ()


class TestListener(AuditListener):
    """Audits what is called while a block is watched, and nothing otherwise."""

    has_indexing = False

    def __init__(self) -> None:
        super().__init__(Path(), Request())
        self._made: list[MadeFunction] = []
        self._is_watching = False

    def made(self, function: MadeFunction) -> bool:
        self._made.append(function)
        return super().made(function)

    def call(self, call: Call) -> Any:
        return super().call(call) if self._is_watching else call.run()

    def end(self) -> None:
        """Writes nothing: a block is read when it ends."""

    @contextlib.contextmanager
    def watching(self, topology: str | None = None) -> Iterator[Seen]:
        """Audits the calls of a block; what was compiled before it does not count."""
        self._request = Request(topology)
        self._functions, self._has_mapped = [], False
        for function in self._made:
            old: AuditedCalls = function.state
            # What pmapx counts of a function is older than the block.
            function.state = AuditedCalls(old.name, None, old.mapped_at, old.static_argnums)
            function.state.is_keyed_by_placement = old.is_keyed_by_placement
            self._note(function.state)
        seen, self._is_watching = Seen(), True
        try:
            yield seen
        finally:
            self._is_watching = False
            report = self.report()
            seen.functions, seen.skipped = report.functions, report.skipped


@functools.cache
def listener() -> TestListener:
    """Returns the listener of this process; functions that are made from now on are watched."""
    made = TestListener()
    attach(made)
    return made
