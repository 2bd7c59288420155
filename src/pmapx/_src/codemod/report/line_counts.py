"""What a change costs in lines, and how many of them are in new functions."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence

from pmapx._src.codemod.report.side_by_side import aligned

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclasses.dataclass(frozen=True, slots=True)
class LineCounts:
    """Lines that are added and removed; the new functions, and the lines that they have."""

    added: int = 0
    removed: int = 0
    in_functions: int = 0
    functions: int = 0

    def __add__(self, other: LineCounts) -> LineCounts:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return LineCounts(*(one + two for one, two in pairs))

    def __str__(self) -> str:
        """Returns the counts in words.

        >>> str(LineCounts(30, 4, 21, 2))
        '30 lines added, 21 of them in 2 new functions; 4 removed'
        """
        helpers = f", {self.in_functions} of them in {self.functions} new function"
        helpers += "s" * (self.functions != 1)
        lines = "line" + "s" * (self.added != 1)
        return f"{self.added} {lines} added{helpers * bool(self.functions)}; {self.removed} removed"


def line_counts(before: Sequence[str], after: Sequence[str]) -> LineCounts:
    """Counts the lines of a change as a diff does.

    >>> line_counts(["f = g"], ["def h(x):", "    return x", "f = h(g)"])
    LineCounts(added=3, removed=1, in_functions=2, functions=1)
    """
    steps = aligned(before, after)
    added = sum(count for kind, count in steps if kind in "+~")
    removed = sum(count for kind, count in steps if kind in "-~")
    known = {name for name, _ in _functions(before)}
    new = [node for name, node in _functions(after) if name not in known]
    inside = {part for node in new for part in ast.walk(node) if part is not node}
    outermost = [node for node in new if node not in inside]
    lines = sum((node.end_lineno or 0) - _first(node) + 1 for node in outermost)
    return LineCounts(added, removed, lines, len(outermost))


def _first(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _functions(
    lines: Sequence[str],
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITIONS):
            yield node.name, node
