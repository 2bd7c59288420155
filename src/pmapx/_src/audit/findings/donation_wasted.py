from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.audit_report import AuditedFunction, Remark
from pmapx._src.pages.formatting import in_bytes


class DonationWasted(Finding):
    """An argument is donated, and no output reuses its memory.

    XLA reuses the memory of a donated array for an output of the same shape, dtype and sharding. If
    there is none, the donation saves nothing, and the argument still cannot be used after the call.
    An array with another sharding is transferred first, and the copy is what is reused.

    What to do: donate only arguments that an output replaces, and return that output with
    the same dtype (``x.astype(old.dtype)``) and the same mapped axis.
    """

    code = "PMX607"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        for donation in function.donations:
            if donation.reason is None:
                continue
            donated = (
                f"{donation.path} ({in_bytes(donation.bytes_a_device)} per device) was donated"
            )
            if donation.is_used:
                message, fix = f"{donated}, but {donation.reason}", "place it before the call"
            else:
                message = f"{donated} and not reused: {donation.reason}"
                fix = "remove it from donate_argnums, or return a value of its shape and dtype"
            yield self.remark(message, fix, function, size=donation.bytes_a_device)
