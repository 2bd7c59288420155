from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.audit_report import AuditedFunction, AuditReport, Remark
from pmapx._src.pages.formatting import counted, in_bytes, place

INDEXING = ("slice", "dynamic_slice", "gather", "squeeze", "getitem")


class IndexGathers(Finding):
    """An array is indexed along its sharded axis, which gathers the result onto all devices.

    With the original pmap ``x[0]`` read one shard from its device. In today's JAX it is a
    collective: all devices run a program that sends the shard to each of them, and wait for one
    another. In a training loop it is often in a line that logs a loss or saves a checkpoint.

    What to do: use ``pmapx.unreplicate(tree)`` or ``pmapx.local_slice(x, i)``, which read the shard
    from its device, or ``pmapx.to_host(tree)`` for numpy arrays. Under ``pmapx.install()`` and
    ``pmapx run`` a plain ``x[i]`` does the same. Inside a ``jit``, index within the ``shard_map``.
    """

    code = "PMX602"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        for exchange in function.exchanges:
            if not exchange.is_written and exchange.operation in INDEXING:
                yield self.remark(
                    f"an index at {place(exchange.place)} became an {exchange.kind} of "
                    f"{in_bytes(exchange.payload)}",
                    "index inside the mapped function, where each device has its own shard",
                    function,
                    exchange.place,
                    exchange.sent_in_a_call,
                )

    def in_run(self, report: AuditReport) -> Iterator[Remark]:
        for read in report.shard_reads:
            yield self.remark(
                f"{place(read.place)} takes [{read.index}] of sharded arrays such as {read.type}, "
                f"{counted(read.count, 'time')}; JAX's own indexing sends {in_bytes(read.bytes)} "
                "for that",
                "pmapx.unreplicate(x) or pmapx.local_slice(x, i) read the shard from its device",
                place=read.place,
                size=read.bytes,
            )
