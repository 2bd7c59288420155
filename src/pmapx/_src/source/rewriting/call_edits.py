"""Edits of calls."""

import ast

from pmapx._src.source.files import Source
from pmapx._src.source.rewriting.edits import Edit, between, ends


def with_keyword(source: Source, call: ast.Call, text: str) -> list[Edit]:
    """Returns the edit that gives a call one more keyword; none if its end is not plain."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    place = source.place(call)
    last = max((source.place(node) for node in given), key=ends, default=None)
    if last is None:
        inside = (place.end_line, place.end_column - 1)
        return [between(inside, inside, text)]
    rest = source.between(ends(last), ends(place))
    # A parenthesis around the last argument would end before the keyword.
    if rest.replace(",", "", 1).strip() != ")":
        return []
    return [between(ends(last), ends(last), f", {text}")]


def by_keyword(source: Source, call: ast.Call, names: tuple[str | None, ...]) -> list[Edit] | None:
    """Returns the edits that pass arguments by keyword, from the first position with a name.

    None if a position has no name, or is not known for a ``*args``.
    """
    edits = []
    for position, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred) or position >= len(names):
            return None
        name = names[position]
        if name is not None:
            place = source.place(argument)
            start = (place.line, place.column)
            if source.line(place.line)[: place.column].rstrip().endswith("(") and position:
                return None
            edits.append(between(start, start, f"{name}="))
    return edits
