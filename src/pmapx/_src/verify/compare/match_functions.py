"""Pairs the functions of the migrated program with those of the program before.

Line numbers changed, and a function may be made elsewhere or later. If functions with the same
code, of the same file and name, or else of the same file, are called equally often in both
versions, their calls are matched in the order of execution. Other functions are matched by file,
name and enclosing function: those of the same shapes and dtypes first, then in the order in which
they were made.
"""

import collections
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence

from pmapx._src.verify.record.reader import Function

_ALIKE: tuple[Callable[[Function], Hashable], ...] = (
    lambda function: (function.name, function.code) if function.code else None,
    lambda function: (function.file, function.name),
    # Lambdas around what was named.
    lambda function: function.file,
)
_KEYS: tuple[Callable[[Function], Hashable], ...] = (
    lambda function: (function.file, function.scope, function.name),
    lambda function: (function.file, function.name),
    lambda function: (function.file, function.scope),
    lambda function: function.name,
    lambda function: function.file,
)

# Shapes change where a device axis goes, and dtypes only with a function: other ones come last.
_SIGNATURES: tuple[Callable[[Function], Hashable], ...] = (
    lambda function: function.signature,
    lambda function: function.signature and function.signature[:2],
    lambda function: None,
)


def match(
    before: Sequence[Function], after: Sequence[Function]
) -> list[tuple[Function | None, Function | None]]:
    """Returns pairs of functions; None stands for a missing one.

    >>> one = Function(0, "pmap", "f", "a.py", 3, "<module>", ())
    >>> moved = Function(4, "jit", "f", "a.py", 70, "<module>", ())
    >>> match([one], [moved]) == [(one, moved)]
    True
    """
    pairs: list[tuple[Function | None, Function | None]] = []
    left, right = list(before), list(after)
    for key in _ALIKE:
        for old, new in _in_step(left, right, key):
            pairs += _matched_by_call(old, new)
            left = [function for function in left if all(function is not each for each in old)]
            right = [function for function in right if all(function is not each for each in new)]
    for key in _KEYS:
        for of_arrays in _SIGNATURES:
            found = _matched(left, right, lambda f: (key(f), of_arrays(f)))  # noqa: B023
            pairs += found
            left = [function for function in left if all(function is not old for old, _ in found)]
            right = [f for f in right if all(f is not new for _, new in found)]
    pairs += [(function, None) for function in left]
    pairs += [(None, function) for function in right]
    return pairs


def _in_step(
    before: Sequence[Function], after: Sequence[Function], key: Callable[[Function], Hashable]
) -> list[tuple[list[Function], list[Function]]]:
    """Returns the functions with the same key that were called equally often in both."""
    sides: list[dict[Hashable, list[Function]]]
    sides = [collections.defaultdict(list), collections.defaultdict(list)]
    for side, functions in zip(sides, (before, after), strict=True):
        for function in functions:
            if (found := key(function)) is not None:
                side[found].append(function)
    both = [(sides[0][found], sides[1][found]) for found in sides[0] if found in sides[1]]
    return [(old, new) for old, new in both if 0 < _recorded(old) == _recorded(new)]


def _recorded(functions: Iterable[Function]) -> int:
    """Returns the number of their calls; 0 if not all of them were recorded."""
    calls = [(function.count, len(function.calls)) for function in functions]
    return sum(count for count, _ in calls) if all(a == b for a, b in calls) else 0


def _matched_by_call(
    before: list[Function], after: list[Function]
) -> list[tuple[Function, Function]]:
    """Pairs each function before with the calls after at the same positions."""
    in_order = sorted(
        (
            (order, call, function)
            for function in after
            for order, call in zip(function.orders, function.calls, strict=True)
        ),
        key=lambda found: found[0],
    )
    places = sorted((order, function.number) for function in before for order in function.orders)
    pairs = []
    for function in before:
        own = [
            found
            for (_, number), found in zip(places, in_order, strict=True)
            if number == function.number
        ]
        orders, calls, made = zip(*own, strict=True)
        other = dataclasses.replace(
            made[0], orders=list(orders), calls=list(calls), count=len(calls)
        )
        pairs.append((function, other))
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
