"""What an audit points out, one kind a file; a class here with a code is one.

Its docstring is the page that ``pmapx explain CODE`` and the documentation show. To add one, write
a file with a class that derives from ``Finding``, with the next free code; no list has to be
changed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from pmapx._src.audit.report.data import AuditedFunction, AuditReport, Remark
from pmapx._src.pages import code_pages
from pmapx._src.pages.code_pages import Coded


class Finding(Coded):
    """Looks for one kind of cost or mistake."""

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        """Yields what it finds in one function."""
        return iter(())

    def in_run(self, report: AuditReport) -> Iterator[Remark]:
        """Yields what it finds in a whole report, beside what is in its functions."""
        return iter(())

    def remark(
        self,
        message: str,
        fix: str,
        function: AuditedFunction | None = None,
        place: str | None = None,
    ) -> Remark:
        """Returns what was found, under this code."""
        name = None if function is None else function.name
        return Remark(self.code, self.slug(), message, fix, name, place)


@functools.cache
def all_findings() -> dict[str, type[Finding]]:
    """Returns the kinds of findings by their codes."""
    return code_pages.all_in(__name__, __path__, Finding)


def about(function: AuditedFunction) -> tuple[Remark, ...]:
    """Returns what there is to say of one function."""
    return tuple(
        remark for kind in all_findings().values() for remark in kind().in_function(function)
    )


def all_in(report: AuditReport) -> tuple[Remark, ...]:
    """Returns what there is to say of a report: of its functions, and of the run."""
    of_functions = [remark for function in report.functions for remark in function.findings]
    of_run = [remark for kind in all_findings().values() for remark in kind().in_run(report)]
    return tuple(dict.fromkeys(sorted([*of_functions, *of_run], key=lambda remark: remark.code)))
