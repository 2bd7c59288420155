"""A function that was compiled again."""

from __future__ import annotations

from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.data import AuditedFunction, Remark
from pmapx._src.audit.report.units import counted, listed


class Recompiled(Finding):
    """A function was compiled more than once, since its arguments changed in type or shape.

    Each new combination of shapes, types, weak types, structures and static arguments is a program
    of its own. A Python number has a weak type and the array that a step returns has not, so that
    a loop that starts with ``step=0`` compiles twice; a last batch that is smaller does too.

    What to do: start with what the loop goes on with (``jnp.float32(0)`` in place of ``0.0``),
    drop or pad the last batch, and pass what changes often as an array, not as a static argument.
    """

    code = "PMX605"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        """One remark for a function, with the reasons."""
        again = function.history.reasons[1:]
        if not again:
            return
        causes = listed(list(dict.fromkeys(again)))
        weak = any("weak type" in reason for reason in again)
        fix = (
            "pass an array of a definite type from the start, as jnp.float32(0) for 0.0"
            if weak
            else "keep shapes and types the same from call to call; pad or drop the last batch"
        )
        yield self.remark(
            f"compiled {counted(1 + len(again), 'time')}: {causes}", fix, function, function.place
        )
