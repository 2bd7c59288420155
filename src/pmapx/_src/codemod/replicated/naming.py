"""What the user calls replicated: ``--replicated train_step:state``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pmapx._src.codemod.replicated.groups import WHOLE, Position
from pmapx._src.codemod.replicated.maps import Map, Maps


class NamingError(ValueError):
    """A name that leads to no pmapped function, argument or result."""


def positions(maps: Maps, named: Iterable[str]) -> frozenset[Position]:
    """Returns the arguments and results that names stand for.

    ``train_step:state`` is the argument, ``train_step:return[1]`` the second result.

    Raises:
      NamingError: if there is no such function or argument; the message lists those there are.
    """
    known: dict[str, list[Map]] = {}
    for each in maps:
        known.setdefault(each.name, []).append(each)
    found: set[Position] = set()
    for text in named:
        function, colon, argument = text.partition(":")
        if not colon or not function or not argument:
            raise NamingError(f"--replicated takes FUNCTION:ARGUMENT, not {text!r}")
        if function in maps.through_wrappers:
            # It stays as it is, and is reported with its reason.
            continue
        if function not in known:
            names = ", ".join(sorted(known)) or "none"
            raise NamingError(f"no pmapped function {function!r}; there are: {names}")
        for each in known[function]:
            found.add(_position(each, argument))
    return frozenset(found)


def _position(each: Map, argument: str) -> Position:
    result = re.fullmatch(r"return(?:\[(\d+)\])?", argument)
    arity = each.arity
    count = 0 if arity is None or arity < 0 else arity
    if result is not None:
        index = WHOLE if result[1] is None else int(result[1])
        if (index == WHOLE) == (count == 0) and index < count:
            return Position.of(each.made_at, index, is_output=True)
    names = each.parameters
    if argument in names:
        return Position.of(each.made_at, names.index(argument), is_output=False)
    results = [f"return[{index}]" for index in range(count)] or ["return"]
    known = ", ".join([*names, *results])
    raise NamingError(f"{each.name} has no argument {argument!r}; it has: {known}")
