"""The rules, one a file; a file in this folder with a class that has a code is a rule.

Its docstring is the page that ``pmapx explain CODE`` and the documentation show.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Confidence, Place
from pmapx._src.lint.finding import Finding
from pmapx._src.pages import code_pages
from pmapx._src.pages.code_pages import Coded

SECTIONS = ("What", "Why", "Before", "After", "Safety", "Guide")


class Rule(Coded, ABC):
    """Turns the facts of a module into findings."""

    @abstractmethod
    def check(self, module: Module) -> Iterator[Finding]:
        """Gives the findings in a module that was read."""

    def finding(
        self,
        place: Place,
        message: str,
        *,
        confidence: Confidence = Confidence.HIGH,
        hint: str = "",
        because: Place | None = None,
    ) -> Finding:
        """Returns a finding of this rule."""
        return Finding(self.code, message, place, confidence, hint, because)


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
