from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.audit_report import AuditedFunction, Remark
from pmapx._src.pages.formatting import arrays, in_bytes

_LEAST_BYTES_A_DEVICE = 2**20


class StateNotDonated(Finding):
    """A large argument is returned in the same shape, and is not donated.

    While the call runs, every device holds it twice: the old state and the new one. With
    ``donate_argnums`` the new state reuses the memory of the old one.

    What to do: add the position of the argument to ``donate_argnums``, if the caller does not use
    the old value after the call.
    """

    code = "PMX610"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        donated = {donation.path for donation in function.donations}
        kept = [leaf for leaf in function.arguments if leaf.carried and leaf.path not in donated]
        size = sum(leaf.bytes_a_device for leaf in kept)
        if size >= _LEAST_BYTES_A_DEVICE:
            yield self.remark(
                f"{arrays([leaf.path for leaf in kept])}: {in_bytes(size)} per device held twice "
                "during the call",
                "donate it, with donate_argnums, if the old value is not used after the call",
                function,
                size=size,
            )
