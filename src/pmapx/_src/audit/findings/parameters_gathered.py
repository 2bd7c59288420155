"""An argument that is gathered whole to every device."""

from __future__ import annotations

from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.data import AuditedFunction, Remark
from pmapx._src.audit.report.units import in_bytes
from pmapx._src.audit.report.units import place as shown


class ParametersGathered(Finding):
    """An argument is gathered as it comes in, so that each device holds all of it.

    That is what sharded parameters are for, if it is meant and each layer is gathered when it is
    needed. It is a mistake where the parameters are replicated in truth (every device had them
    already), and with a batch it undoes the map.

    What to do: if all devices hold the same, pass it whole (``in_axes=None``, ``P()``). If it is
    meant to be sharded, gather each part where it is used, and drop it after.
    """

    code = "PMX606"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        """All-gathers whose operand is an argument."""
        arguments = {leaf.path: leaf for leaf in function.arguments}
        for exchange in function.exchanges:
            leaf = arguments.get(exchange.argument or "")
            if exchange.kind != "all-gather" or leaf is None:
                continue
            known = ", which all devices hold the same of" if leaf.is_equal else ""
            yield self.remark(
                f"{leaf.path}, {leaf.type}{known}: gathered whole at {shown(exchange.place)}, "
                f"{in_bytes(exchange.payload)} on each device",
                "pass what is equal on all devices whole (in_axes=None, P()); gather the rest "
                "where it is used",
                function,
                exchange.place,
            )
