"""What an AST does not have: the comments of an expression, and the parentheses around a part."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import tokenize
from collections.abc import Sequence
from typing import NamedTuple

from pmapx._src.source.files import Source
from pmapx._src.source.location import Place
from pmapx._src.source.rewriting.edits import ends, starts

_BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE)


class _Token(NamedTuple):
    kind: int
    text: str
    place: Place


def is_at_its_place(source: Source, node: ast.expr) -> bool:
    """Returns whether a node has its real place: in f-strings, not always before Python 3.12."""
    try:
        found = ast.parse(f"({source.segment(source.place(node))}\n)", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return ast.dump(found) == ast.dump(node)


def is_bare_tuple(source: Source, node: ast.expr) -> bool:
    """Returns whether an expression is a tuple without parentheses of its own: ``(a), b``."""
    if not isinstance(node, ast.Tuple):
        return False
    call = ast.parse(f"_({source.segment(source.place(node))}\n)", mode="eval").body
    assert isinstance(call, ast.Call)
    return [ast.dump(arg) for arg in call.args] != [ast.dump(node)]


def needs_parentheses(function: ast.expr) -> bool:
    """Returns whether the called expression is in parentheses, which its place excludes."""
    return not isinstance(function, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))


def comments(source: Source, place: Place) -> list[tuple[Place, str]]:
    """Returns the comments inside an expression."""
    if "#" not in source.segment(place):
        return []
    found = _tokens(source, place)
    return [(token.place, token.text) for token in found if token.kind == tokenize.COMMENT]


def comments_between(source: Source, call: ast.Call) -> list[tuple[str, str | None]]:
    """Returns the comments of a call that are inside none of its arguments.

    Each with the keyword that it is above, or after on the same line.
    """
    given = arguments(source, call)
    if isinstance(call.func, ast.Call):
        given += arguments(source, call.func)
    return [
        (text, _keyword_beside(place, given))
        for place, text in comments(source, source.place(call))
        if not any(place.is_inside(argument) for _, argument in given)
    ]


def _keyword_beside(comment: Place, given: Sequence[tuple[str | None, Place]]) -> str | None:
    # An earlier pass may have added axes after the ones written there.
    own = [each for each in given if each[0] not in ("in_axes", "out_axes")]
    ordered = sorted(own, key=lambda each: starts(each[1]))
    before = [name for name, place in ordered if place.end_line == comment.line]
    below = [name for name, place in ordered if place.line > comment.line]
    return before[-1] if before else next(iter(below), None)


def arguments(source: Source, call: ast.Call) -> list[tuple[str | None, Place]]:
    """Returns a call's arguments: the keyword, and the place with parentheses around the value."""
    tokens = _tokens(source, source.place(call))
    after = ends(source.place(call.func))
    opening = next(
        number
        for number, token in enumerate(tokens)
        if token.text == "(" and starts(token.place) >= after
    )
    inside = tokens[opening + 1 : -1]
    given: list[tuple[str | None, ast.expr]] = [(None, node) for node in call.args]
    given += [(keyword.arg, keyword.value) for keyword in call.keywords]
    return [(name, _with_parentheses(source.place(node), inside)) for name, node in given]


def _tokens(source: Source, place: Place) -> list[_Token]:
    # In parentheses, the lines of an expression are not statements.
    text = f"({source.segment(place)})"
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        start, end = _shifted(place, token.start), _shifted(place, token.end)
        if starts(place) <= start < ends(place):
            found.append(_Token(token.type, token.string, Place(place.path, *start, *end)))
    return found


def _shifted(place: Place, point: tuple[int, int]) -> tuple[int, int]:
    line, column = point
    return place.line + line - 1, column + (place.column - 1 if line == 1 else 0)


def _with_parentheses(place: Place, tokens: list[_Token]) -> Place:
    tokens = [token for token in tokens if token.kind not in _BLANK]
    before = [token for token in tokens if ends(token.place) <= starts(place)]
    after = [token for token in tokens if starts(token.place) >= ends(place)]
    while before and after and before[-1].text == "(" and after[0].text == ")":
        place = Place(place.path, *starts(before.pop().place), *ends(after.pop(0).place))
    return place


def is_literal(text: str) -> bool:
    """Returns whether a text is a number, a string, or several in brackets."""
    try:
        ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def on_one_line(text: str) -> str:
    """Returns an argument of a call in one line, "" if that would change a string of it.

    >>> on_one_line("metrics=partial(\\n    accuracy, axis=0)")
    'metrics=partial(accuracy, axis=0)'
    """
    if "\n" not in text:
        return text
    joined = re.sub(r"([(\[{]) ", r"\1", " ".join(text.split()))
    # Without the comma after the last argument, unless that makes a tuple.
    for each in (re.sub(r",? (?=[)\]}])", "", joined), joined):
        with contextlib.suppress(SyntaxError):
            if ast.dump(ast.parse(f"f({each})")) == ast.dump(ast.parse(f"f({text})")):
                return each
    return ""
