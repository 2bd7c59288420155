"""A collective that XLA added."""

from __future__ import annotations

from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.findings.row_gathered import _READS
from pmapx._src.audit.report.data import AuditedFunction, Remark
from pmapx._src.audit.report.units import in_bytes
from pmapx._src.audit.report.units import place as shown


class CollectiveNotWritten(Finding):
    """The compiled program has a collective that nobody wrote.

    Around a ``shard_map`` XLA moves arrays as it sees fit: an output that is wanted in another
    layout than it was made in, an operation between two maps that mixes rows, an argument that
    lies elsewhere. Each is a collective that no line of the program shows.

    What to do: compute on the devices' own rows inside of the mapped function, and give arrays
    that go from one map to the next the same spec on both sides.
    """

    code = "PMX608"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        """Each collective that comes from none of JAX's."""
        for exchange in function.exchanges:
            if exchange.is_written or exchange.operation in _READS:
                continue
            origin = f"for `{exchange.operation}` " if exchange.operation else ""
            yield self.remark(
                f"XLA added an {exchange.kind} of {in_bytes(exchange.payload)} {origin}"
                f"at {shown(exchange.place)}",
                "compute inside of the mapped function, and keep specs the same between maps",
                function,
                exchange.place,
            )
