"""Which function of the migrated program is which of the one before.

Lines have moved, so that file, name and surrounding function count, then the order in which the
program made them.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Sequence

from pmapx.migrate.verify.records import Function

_KEYS: tuple[Callable[[Function], Hashable], ...] = (
    lambda function: (function.file, function.scope, function.name),
    lambda function: (function.file, function.name),
    lambda function: (function.file, function.scope),
    lambda function: function.name,
    lambda function: function.file,
)


def match(
    before: Sequence[Function], after: Sequence[Function]
) -> list[tuple[Function | None, Function | None]]:
    """Returns pairs of functions; one that has no other half stands alone.

    >>> one = Function(0, "pmap", "f", "a.py", 3, "<module>", ())
    >>> moved = Function(4, "jit", "f", "a.py", 70, "<module>", ())
    >>> match([one], [moved]) == [(one, moved)]
    True
    """
    pairs: list[tuple[Function | None, Function | None]] = []
    left, right = list(before), list(after)
    for key in _KEYS:
        found = _matched(left, right, key)
        pairs += found
        left = [function for function in left if all(function is not old for old, _ in found)]
        right = [function for function in right if all(function is not new for _, new in found)]
    pairs += [(function, None) for function in left]
    pairs += [(None, function) for function in right]
    return pairs


def _matched(
    before: list[Function], after: list[Function], key: Callable[[Function], Hashable]
) -> list[tuple[Function, Function]]:
    waiting: dict[Hashable, collections.deque[Function]]
    waiting = collections.defaultdict(collections.deque)
    for function in sorted(after, key=lambda function: function.number):
        waiting[key(function)].append(function)
    pairs = []
    for function in sorted(before, key=lambda function: function.number):
        if waiting[key(function)]:
            pairs.append((function, waiting[key(function)].popleft()))
    return pairs
