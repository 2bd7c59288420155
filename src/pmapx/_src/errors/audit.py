"""Mistakes in what is to be audited."""

from __future__ import annotations

from typing import Any

from pmapx._src.errors.base import PmapxError


class CannotAudit(PmapxError, TypeError, code="PMX691"):
    """pmapx.audit was given something that is not a function.

    It takes the mapped function and its arguments apart, ``pmapx.audit(step, state, batch)``, and
    not the result of a call.
    """

    def __init__(self, given: Any) -> None:
        super().__init__(
            f"audit expects a function, got {type(given).__name__}.",
            fix="pass the mapped function first and its arguments after it: "
            "pmapx.audit(step, state, batch).",
        )
