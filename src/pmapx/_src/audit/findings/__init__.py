"""What an audit points out: one file per finding, with the class that detects it.

A finding is a class with a code that derives from ``Finding``. Its docstring is the page that
``pmapx explain CODE`` and the documentation show. There is no list to update: every file in this
package is read.
"""

import collections
import functools
from collections.abc import Iterable, Iterator
from typing import Any

from pmapx._src.audit.report.audit_report import AuditedFunction, AuditReport, Remark
from pmapx._src.pages import code_pages
from pmapx._src.pages.code_pages import Coded


class Finding(Coded):
    """Detects one kind of cost or mistake."""

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        """Yields what it finds in one function."""
        return iter(())

    def in_run(self, report: AuditReport) -> Iterator[Remark]:
        """Yields what it finds in the run of a program, outside of its functions."""
        return iter(())

    def remark(
        self,
        message: str,
        fix: str,
        function: AuditedFunction | None = None,
        place: str | None = None,
        size: int = 0,
    ) -> Remark:
        """Returns a remark on a line, which by default is the function's definition.

        ``size`` is the bytes at stake.
        """
        name = None if function is None else function.name
        place = place or (None if function is None else function.place)
        return Remark(self.code, self.slug(), message, fix, name, place, size)


@functools.cache
def all_findings() -> dict[str, type[Finding]]:
    """Returns the kinds of findings by their codes."""
    return code_pages.all_in(__name__, __path__, Finding)


def about(function: AuditedFunction) -> tuple[Remark, ...]:
    """Returns the remarks on one function."""
    return tuple(
        remark for kind in all_findings().values() for remark in kind().in_function(function)
    )


def all_in(report: AuditReport) -> tuple[Remark, ...]:
    """Returns the remarks on a report: on its functions, and on the run."""
    on_functions = [remark for function in report.functions for remark in function.findings]
    on_run = [remark for kind in all_findings().values() for remark in kind().in_run(report)]
    return ranked([*on_functions, *on_run])


def ranked(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """Groups remarks by code and function; the group with the most bytes at stake comes first."""
    once = list(dict.fromkeys(remarks))
    sizes: collections.Counter[tuple[str, str | None]] = collections.Counter()
    for remark in once:
        sizes[remark.code, remark.function] += remark.bytes

    def rank(remark: Remark) -> tuple[Any, ...]:
        group = remark.code, remark.function
        return -sizes[group], remark.code, remark.function or "", -remark.bytes

    return tuple(sorted(once, key=rank))
