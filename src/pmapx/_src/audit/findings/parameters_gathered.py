from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.audit_report import AuditedFunction, Remark
from pmapx._src.pages.formatting import in_bytes, place


class ParametersGathered(Finding):
    """An argument is all-gathered on entry, so that each device holds all of it.

    That is how sharded parameters work (FSDP), if each layer is gathered when it is needed. It is a
    mistake if the parameters are equal on all devices, which already hold them; for a batch, it
    undoes the mapping.

    What to do: if all devices hold the same values, pass it replicated (``in_axes=None``, ``P()``).
    If it is meant to be sharded, gather each part where it is used, and drop it afterwards.
    """

    code = "PMX606"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        arguments = {leaf.path: leaf for leaf in function.arguments}
        for exchange in function.exchanges:
            leaf = arguments.get(exchange.argument or "")
            if exchange.kind != "all-gather" or leaf is None:
                continue
            equal = ", equal on all devices," if leaf.is_equal else ""
            yield self.remark(
                f"{leaf.path}, {leaf.type}{equal} is all-gathered at {place(exchange.place)}: "
                f"{in_bytes(exchange.payload)} on each device",
                "pass what is equal on all devices replicated (in_axes=None, P()); gather the rest "
                "where it is used",
                function,
                exchange.place,
                exchange.sent_in_a_call,
            )
