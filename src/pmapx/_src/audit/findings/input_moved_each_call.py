"""An input that is moved before every call."""

from __future__ import annotations

from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.data import AuditedFunction, Remark
from pmapx._src.audit.report.units import counted, in_bytes


class InputReshardedEachCall(Finding):
    """An array lies elsewhere than the program needs it, and is moved before each call.

    It may lie on one device alone, on other devices, or be replicated where it has to be split. The
    move takes time at every call, and for that time memory for a second copy.

    What to do: put it in its place once, with ``jax.device_put(x, sharding)`` or
    ``pmapx.replicate``; for batches, with ``pmapx.shard_batch`` or ``pmapx.prefetch``, which puts
    the next ones there while a step runs.
    """

    code = "PMX604"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        """Inputs moved at (almost) each call, or that the audit's own call would move."""
        history = function.history
        moved = {leaf.path: leaf for leaf in function.arguments if leaf.moved}
        for move in history.moved:
            # The first call of a loop may be fed from elsewhere, and only that.
            if move.count >= 2 and move.count >= history.calls - 1:
                moved.pop(move.path, None)
                size = "" if move.bytes is None else f" ({in_bytes(move.bytes)})"
                yield self._said(
                    f"{move.path}{size} was moved before {counted(move.count, 'call')} of "
                    f"{history.calls}: {move.reason}",
                    function,
                )
        if history.calls > 1:
            return  # The record above tells of all of them.
        for leaf in moved.values():
            yield self._said(
                f"{leaf.path}, {leaf.type}, is moved before the program runs: {leaf.moved}",
                function,
            )

    def _said(self, message: str, function: AuditedFunction) -> Remark:
        fix = "put it there before the loop, or batches with pmapx.shard_batch or pmapx.prefetch"
        return self.remark(message, fix, function, function.place)
