"""What a change costs in lines, and how many of them are in new functions."""

from __future__ import annotations

import ast
import collections
import dataclasses
import re
from collections.abc import Iterator, Sequence

from pmapx._src.codemod.forms.shard_map_decorator import PER_DEVICE
from pmapx._src.codemod.report.side_by_side import aligned
from pmapx._src.source.files import first_line

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# Longer files are counted without being aligned.
MOST_ALIGNED = 5_000
_DEFINITION = re.compile(r"\s*(?:async\s+)?(?:def|class)\s+(\w+)")


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
    known = set(_defined(before))
    new = [] if known.issuperset(_defined(after)) else list(_outermost_new(after, known))
    lines = sum((node.end_lineno or 0) - first_line(node) + 1 for node in new)
    return LineCounts(*_changed(before, after), lines, len(new))


def _changed(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """Returns how many lines are added and removed."""
    if max(len(before), len(after)) > MOST_ALIGNED:
        # Aligning takes too long; lines that only changed their place are not counted here.
        old, new = collections.Counter(before), collections.Counter(after)
        return (new - old).total(), (old - new).total()
    steps = aligned(before, after)
    added = sum(count for kind, count in steps if kind in "+~")
    return added, sum(count for kind, count in steps if kind in "-~")


def _defined(lines: Sequence[str]) -> Iterator[str]:
    return (found[1] for line in lines if (found := _DEFINITION.match(line)))


def _outermost_new(lines: Sequence[str], known: set[str]) -> Iterator[Definition]:
    """Yields the functions and classes that are new and not inside another new one."""
    try:
        waiting: list[ast.AST] = [ast.parse("\n".join(lines))]
    except (SyntaxError, ValueError, RecursionError):
        return
    while waiting:
        node = waiting.pop()
        if isinstance(node, Definition) and node.name not in known and not is_moved_body(node.name):
            yield node
        else:
            children = ast.iter_child_nodes(node)
            waiting += [child for child in children if not isinstance(child, ast.expr)]


def is_moved_body(name: str) -> bool:
    """Returns whether a function is the body of one that was there before."""
    return name.startswith(PER_DEVICE)
