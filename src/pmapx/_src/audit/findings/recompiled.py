from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.audit_report import AuditedFunction, Remark
from pmapx._src.pages.formatting import counted, listed


class Recompiled(Finding):
    """A function was compiled more than once, because its arguments changed in type or shape.

    Each new combination of shapes, dtypes, weak types, tree structures and static arguments is a
    cache miss. A Python number has a weak type and the array that a step returns does not, so a
    loop that starts with ``step=0`` compiles twice; so does one whose last batch is smaller.

    What to do: start with the types that the loop continues with (``jnp.float32(0)`` in place of
    ``0.0``), drop or pad the last batch, and pass values that change often as arrays, not as static
    arguments.
    """

    code = "PMX605"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        again = function.history.reasons[1:]
        if not again:
            return
        if any("weak type" in reason for reason in again):
            fix = "pass an array with a definite dtype from the start, jnp.float32(0) for 0.0"
        else:
            fix = "keep shapes and dtypes the same from call to call; pad or drop the last batch"
        causes = listed(list(dict.fromkeys(again)))
        yield self.remark(f"compiled {counted(1 + len(again), 'time')}: {causes}", fix, function)
