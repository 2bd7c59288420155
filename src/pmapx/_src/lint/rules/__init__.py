"""The rules of ``pmapx check``, one a file, each with its check and its fix.

A class in a file below this package that derives from ``Rule`` and has a code is a rule; there is
no list. Its docstring is the page that ``pmapx explain CODE`` and the documentation show.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, ClassVar

from pmapx._src.lint.finding import Finding, Fix, Release
from pmapx._src.pages import code_pages
from pmapx._src.pages.code_pages import Coded
from pmapx._src.source.location import Confidence, Place

if TYPE_CHECKING:
    from pmapx._src.analysis.module import Module


class Rule(Coded, ABC):
    """Turns the facts of a module into findings, each with the fix that the rule has for it."""

    # The full names, or the flags, without which a file has no finding: it is then not parsed.
    names: ClassVar[Collection[str]] = ()

    @abstractmethod
    def check(self, module: Module) -> Iterator[Finding]:
        """Yields the findings in a module that was read."""

    def finding(
        self,
        place: Place,
        message: str,
        *,
        confidence: Confidence = Confidence.HIGH,
        hint: str = "",
        because: Place | None = None,
        fix: Fix | None = None,
        since: Release | None = None,
        is_deprecation: bool = False,
    ) -> Finding:
        """Returns a finding of this rule."""
        return Finding(
            self.code, message, place, confidence, hint, because, fix, since, is_deprecation
        )


@functools.cache
def all_rules() -> dict[str, type[Rule]]:
    """Returns the rules by their codes."""
    return code_pages.all_in(__name__, __path__, Rule)  # type: ignore[type-abstract]


@functools.cache
def selected(select: tuple[str, ...], ignore: tuple[str, ...]) -> frozenset[str]:
    """Returns the codes that are asked for; ``PMX51`` stands for all that begin with it.

    >>> sorted(selected(("PMX54",), ("PMX542",)))
    ['PMX541']
    """
    codes = [code for code in all_rules() if not select or code.startswith(select)]
    return frozenset(code for code in codes if not (ignore and code.startswith(ignore)))
