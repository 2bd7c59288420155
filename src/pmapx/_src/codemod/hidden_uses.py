"""What the statements of a notebook do not show: names that IPython's own lines use."""

from __future__ import annotations

import re

from pmapx._src.analysis.module import Module
from pmapx._src.codemod.text.name_uses import name_uses
from pmapx._src.source import notebooks
from pmapx._src.source.files import Source

_WORD = re.compile(r"[^\W\d]\w*")
# Lines for a shell, or for IPython itself, which have names of Python only as {name} and $name.
_COMMAND = re.compile(
    r"\s*(?:!|%(?:pip|conda|cd|env|load_ext|reload_ext|autoreload|matplotlib|config)\b)"
)
_EXPANDED = re.compile(r"\{[^}]*\}|\$\w+")


def hidden_words(source: Source, data: bytes) -> dict[str, tuple[int, int]]:
    """Returns the words on lines that are not Python, and the cell and line of each.

    ``%time state = step(state, x)`` is not a Python statement, nor is a cell that does not parse.
    """
    if not source.cells:
        return {}
    found: dict[str, tuple[int, int]] = {}
    kept = {cell.number: cell.source.split("\n") for cell in source.cells}
    for number, text in notebooks.texts(data):
        python = kept.get(number, [])
        for line, original in enumerate(re.split("\r\n|\r|\n", text)):
            if line >= len(python) or python[line] != original:
                is_command = _COMMAND.match(original) is not None
                parts = _EXPANDED.findall(original) if is_command else [original]
                for word in _WORD.findall(" ".join(parts)):
                    found.setdefault(word, (number, line + 1))
    return found


def reason(module: Module, data: bytes) -> str:
    """Returns why the values of a notebook cannot be followed, empty if they can."""
    bound = name_uses(module).bound
    for word, (cell, line) in hidden_words(module.source, data).items():
        if word in bound:
            return f"a line that is not Python uses {word} (cell {cell}:{line})"
    return ""
