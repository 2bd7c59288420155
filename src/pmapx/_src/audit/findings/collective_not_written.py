from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.findings.index_gathers import INDEXING
from pmapx._src.audit.report.audit_report import AuditedFunction, Remark
from pmapx._src.pages.formatting import in_bytes, place


class CollectiveNotWritten(Finding):
    """The compiled program has a collective that is not in the source.

    Around a ``shard_map`` XLA reshards arrays as needed: an output that is wanted in another
    sharding than it was computed in, an operation between two mapped functions that mixes shards,
    an argument with another sharding. Each is a collective that no line of the program shows. In a
    plain ``jax.jit`` over a global batch, XLA adds all collectives: the all-reduce of gradients and
    metrics, which is that of a sum over the batch, is expected there and not reported.

    What to do: compute on each device's own shard inside the mapped function, and give arrays
    that go from one mapped function to the next the same spec on both sides.
    """

    code = "PMX608"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        for exchange in function.exchanges:
            is_sum_over_batch = function.kind == "jit" and exchange.kind == "all-reduce"
            if exchange.is_written or is_sum_over_batch or exchange.operation in INDEXING:
                continue
            origin = f"for `{exchange.operation}` " if exchange.operation else ""
            yield self.remark(
                f"XLA added an {exchange.kind} of {in_bytes(exchange.payload)} {origin}"
                f"at {place(exchange.place)}",
                "compute inside the mapped function, and keep the spec of an array the same "
                "between mapped functions",
                function,
                exchange.place,
                exchange.sent_in_a_call,
            )
