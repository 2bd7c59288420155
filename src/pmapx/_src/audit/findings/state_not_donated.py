"""State that is not donated."""

from __future__ import annotations

from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.data import AuditedFunction, Remark
from pmapx._src.audit.report.units import arrays, in_bytes

WORTH_A_WORD = 2**20
"""Bytes a device below which nothing is said."""


class StateNotDonated(Finding):
    """A large argument is returned in the same shape, and is not donated.

    While the call runs there are two of it on every device: the old state and the new one. With
    ``donate_argnums`` the new one takes the place of the old.

    What to do: ``donate_argnums`` with the position of the argument, if the caller does not use
    the old value after the call.
    """

    code = "PMX610"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        """One remark for all such arguments together."""
        donated = {donation.path for donation in function.donations}
        kept = [leaf for leaf in function.arguments if leaf.carried and leaf.path not in donated]
        size = sum(leaf.bytes_a_device for leaf in kept)
        if size >= WORTH_A_WORD:
            yield self.remark(
                f"{arrays([leaf.path for leaf in kept])}: {in_bytes(size)} a device held twice "
                "during the call",
                "donate it, with donate_argnums, if the old value is not used after the call",
                function,
                function.place,
            )
