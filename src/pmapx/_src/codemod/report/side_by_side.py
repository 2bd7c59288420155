"""Two versions of a text side by side: which line of one belongs to which of the other."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence

# Lines that share less than this are shown as one gone and one new.
ALIKE = 0.5
# Characters that two lines begin with, after the same indentation, to be taken for one statement.
SAME_BEGIN = 8
# Blocks with more pairs of lines than this are set side by side as they come.
MOST_PAIRS = 900

Step = tuple[str, int]


def aligned(before: Sequence[str], after: Sequence[str]) -> list[Step]:
    """Returns steps through both: ``=`` keeps, ``~`` changes, ``-`` removes and ``+`` adds a line.

    >>> aligned(["import jax", "f = jax.pmap(g)"], ["import jax", "", "f = jax.jit(g)"])
    [('=', 1), ('+', 1), ('~', 1)]
    """
    steps: list[Step] = []
    matcher = difflib.SequenceMatcher(None, before, after)
    for tag, first, end, new_first, new_end in matcher.get_opcodes():
        if tag == "equal":
            _add(steps, "=", end - first)
        elif tag == "replace":
            for kind, count in _replaced(before[first:end], after[new_first:new_end]):
                _add(steps, kind, count)
        else:
            _add(steps, "-", end - first)
            _add(steps, "+", new_end - new_first)
    return steps


def _add(steps: list[Step], kind: str, count: int) -> None:
    if count and steps and steps[-1][0] == kind:
        steps[-1] = (kind, steps[-1][1] + count)
    elif count:
        steps.append((kind, count))


def _replaced(before: Sequence[str], after: Sequence[str]) -> list[Step]:
    """Pairs the lines that are most alike, in their order."""
    if len(before) * len(after) > MOST_PAIRS:
        both = min(len(before), len(after))
        return [("~", both), ("-", len(before) - both), ("+", len(after) - both)]
    # best[i][j]: how much alike what is left of both can be from line i and line j on.
    best = [[0.0] * (len(after) + 1) for _ in range(len(before) + 1)]
    likeness = [[_likeness(old, new) for new in after] for old in before]
    for i in reversed(range(len(before))):
        for j in reversed(range(len(after))):
            paired = likeness[i][j] + best[i + 1][j + 1]
            best[i][j] = max(best[i + 1][j], best[i][j + 1], paired)
    steps: list[Step] = []
    i = j = 0
    while i < len(before) and j < len(after):
        if likeness[i][j] and best[i][j] == likeness[i][j] + best[i + 1][j + 1]:
            steps.append(("~", 1))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            steps.append(("-", 1))
            i += 1
        else:
            steps.append(("+", 1))
            j += 1
    return steps + [("-", len(before) - i), ("+", len(after) - j)]


def _common_begin(old: str, new: str) -> str:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
    return "".join(character for character, _ in same)


def _likeness(old: str, new: str) -> float:
    """How much two lines share; those that begin the same belong together before all others."""
    begin = _common_begin(old, new).lstrip()
    old, new = old.strip(), new.strip()
    if not old or not new:
        return 0.0
    if len(begin) >= SAME_BEGIN:
        return 1.0
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    ratio = matcher.ratio() if matcher.quick_ratio() >= ALIKE else 0.0
    return ratio if ratio >= ALIKE else 0.0
