"""A Griffe extension: doctests of docstrings become blocks of code on the page of the API."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^\s*Examples:$")


class DoctestsAsCode(griffe.Extension):
    """Fences doctests outside of ``Examples:``, and writes RST's literals as Markdown's."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrites all docstrings of a package once it is loaded."""
        seen: set[int] = set()
        pending: list[Any] = [pkg]
        while pending:
            found = pending.pop()
            if found.is_alias or id(found) in seen:
                continue
            seen.add(id(found))
            if found.docstring is not None:
                found.docstring.value = as_markdown(found.docstring.value)
            pending += found.members.values()


def as_markdown(docstring: str) -> str:
    """Returns a docstring whose doctests Markdown does not take for quotes.

    >>> print(as_markdown("Doubles ``x``.\\n\\n>>> double(2)\\n4\\n\\nThe end."))
    Doubles `x`.
    <BLANKLINE>
    ```pycon
    >>> double(2)
    4
    ```
    <BLANKLINE>
    The end.
    """
    lines: list[str] = []
    is_section, is_code = False, False
    for line in docstring.splitlines():
        if is_code and not line.strip():
            lines.append("```")
            is_code = False
        # Griffe itself shows the examples of that section as code.
        is_section = bool(_SECTION.match(line)) or (is_section and line[:1] in ("", " "))
        if line.startswith(">>> ") and not is_code and not is_section:
            lines.append("```pycon")
            is_code = True
        is_blank = line.strip() == "<BLANKLINE>"
        lines.append("" if is_blank else line if is_code or is_section else line.replace("``", "`"))
    return "\n".join([*lines, *["```"] * is_code])
