"""What an audit points out, one kind a file; a class here with a code is one.

Its docstring is the page that ``pmapx explain CODE`` and the documentation show. To add one, write
a file with a class that derives from ``Finding``, with the next free code; no list has to be
changed.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import ClassVar

from pmapx.audit.report import AuditedFunction, AuditReport, Remark


class Finding:
    """Looks for one kind of cost or mistake."""

    code: ClassVar[str]

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

    @classmethod
    def slug(cls) -> str:
        """Returns its name in words: ``stacked-replicas`` for ``StackedReplicas``."""
        return re.sub("(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    def page(cls) -> str:
        """Returns the docstring, with its code and title in front."""
        text = inspect.cleandoc(cls.__doc__ or "")
        return f"{cls.code} {cls.__name__}: {text[0].lower()}{text[1:]}"

    @classmethod
    def summary(cls) -> str:
        """Returns the docstring's first line."""
        return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]


@functools.cache
def all_findings() -> dict[str, type[Finding]]:
    """Returns the kinds of findings by their codes."""
    found: dict[str, type[Finding]] = {}
    for item in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{item.name}")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, Finding) and cls.__module__ == module.__name__:
                if cls.code in found:
                    raise AssertionError(f"{cls.code} is taken by {found[cls.code].__name__}")
                found[cls.code] = cls
    return dict(sorted(found.items()))


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
