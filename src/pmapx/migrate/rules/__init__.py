"""The rules, one a file; a file in this folder with a class that has a code is a rule.

Its docstring is the page that ``pmapx explain CODE`` and the documentation show.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from pmapx.migrate.findings import Finding
from pmapx.migrate.module import Module
from pmapx.migrate.values import Confidence, Place

SECTIONS = ("What", "Why", "Before", "After", "Safety", "Guide")


class Rule(ABC):
    """Turns the facts of a module into findings."""

    code: ClassVar[str]

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

    @classmethod
    def slug(cls) -> str:
        """Returns the rule's name in words: ``negative-out-axes`` for ``NegativeOutAxes``."""
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
def all_rules() -> dict[str, type[Rule]]:
    """Returns the rules by their codes."""
    found: dict[str, type[Rule]] = {}
    for item in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{item.name}")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, Rule) and cls.__module__ == module.__name__:
                if cls.code in found:
                    raise AssertionError(f"{cls.code} is taken by {found[cls.code].__name__}")
                found[cls.code] = cls
    return dict(sorted(found.items()))


def selected(select: tuple[str, ...], ignore: tuple[str, ...]) -> frozenset[str]:
    """Returns the codes that are asked for; ``PMX51`` stands for all that begin with it.

    >>> sorted(selected(("PMX54",), ("PMX542",)))
    ['PMX541']
    """
    codes = [code for code in all_rules() if not select or code.startswith(select)]
    return frozenset(code for code in codes if not (ignore and code.startswith(ignore)))
