"""A donated argument that was not reused."""

from __future__ import annotations

from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.data import AuditedFunction, Remark
from pmapx._src.audit.report.units import in_bytes


class DonationWasted(Finding):
    """An argument was donated, and no output took its place.

    A donated array's memory is reused for an output of its shape, type and placement. Without one
    the donation saves nothing, and the argument can still not be used after the call. One that lies
    elsewhere is moved first, and it is the copy that is reused.

    What to do: donate only what has a successor among the outputs; return that in the same type
    (``x.astype(old.dtype)``) and along the same axis.
    """

    code = "PMX607"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        """One remark for each such argument."""
        for donation in function.donations:
            if donation.reason is not None:
                what = "was donated and not reused" if not donation.is_used else "was donated, but"
                yield self.remark(
                    f"{donation.path} ({in_bytes(donation.bytes_a_device)} a device) {what}"
                    f"{': ' if not donation.is_used else ' '}{donation.reason}",
                    "take it out of donate_argnums, or return a value of its shape and type"
                    if not donation.is_used
                    else "put it in its place before the call",
                    function,
                    function.place,
                )
