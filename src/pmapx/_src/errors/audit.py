"""Mistakes in the arguments of pmapx.audit."""

from __future__ import annotations

from typing import Any

from pmapx._src.errors.base import PmapxError


class CannotAudit(PmapxError, TypeError, code="PMX691"):
    """The first argument of pmapx.audit is not a function.

    Pass the function and its arguments, ``pmapx.audit(step, state, batch)``, not the result of a
    call.
    """

    def __init__(self, given: Any) -> None:
        super().__init__(
            f"audit expects a function, got {type(given).__name__}.",
            fix="pass the pmapped function and then its arguments: "
            "pmapx.audit(step, state, batch).",
        )


class UnknownWhatIf(PmapxError, ValueError, code="PMX692"):
    """The what_if option of pmapx.audit is unknown.

    The only value is ``"fsdp"``, the cost with parameters and optimizer state sharded over the data
    axis.
    """

    def __init__(self, given: Any) -> None:
        super().__init__(
            f"audit got what_if={given!r}.",
            fix='pass what_if="fsdp", or leave it out.',
        )
