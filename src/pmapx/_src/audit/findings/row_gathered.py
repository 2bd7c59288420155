"""``x[0]`` of an array that lies on several devices."""

from __future__ import annotations

from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.data import AuditedFunction, AuditReport, Remark
from pmapx._src.audit.report.units import counted, in_bytes
from pmapx._src.audit.report.units import place as shown

_READS = ("slice", "dynamic_slice", "gather", "squeeze", "getitem")


class RowGathered(Finding):
    """A row is taken of an array that lies on several devices, which gathers it.

    With the original pmap ``x[0]`` read one row from its device. For today's JAX it is a program
    on all devices, which sends the row to each of them, and waits for all. In a training loop it
    often stands in a line that logs a loss or saves a checkpoint.

    What to do: ``pmapx.unreplicate(tree)`` or ``pmapx.local_slice(x, i)``, which read the row where
    it lies, or ``pmapx.to_host(tree)`` for numpy arrays. Under ``pmapx.install()`` and
    ``pmapx run`` a plain ``x[i]`` does so too. Inside a ``jit``, index within the ``shard_map``.
    """

    code = "PMX602"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        """Collectives that an index between maps became."""
        for exchange in function.exchanges:
            if not exchange.is_written and exchange.operation in _READS:
                yield self.remark(
                    f"an index at {shown(exchange.place)} became an {exchange.kind} of "
                    f"{in_bytes(exchange.payload)}",
                    "take the row inside of the mapped function, where each device has its own",
                    function,
                    exchange.place,
                )

    def in_run(self, report: AuditReport) -> Iterator[Remark]:
        """Lines of the program that take rows."""
        for read in report.row_reads:
            yield self.remark(
                f"{shown(read.place)} takes [{read.index}] of arrays over several devices, such "
                f"as {read.type}: {counted(read.count, 'time')}, for which JAX alone sends "
                f"{in_bytes(read.bytes)}",
                "pmapx.unreplicate(x) or pmapx.local_slice(x, i) read the row where it lies",
                place=read.place,
            )
