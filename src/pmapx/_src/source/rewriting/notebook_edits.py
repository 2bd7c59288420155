"""Edits of a file's text, or of the text that a notebook's code cells make together."""

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pmapx._src.source import files
from pmapx._src.source.files import Source
from pmapx._src.source.location import LINE_END
from pmapx._src.source.notebooks import Cell
from pmapx._src.source.rewriting import edits as spans
from pmapx._src.source.rewriting.edits import Edit

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(strict=False)


def applied(source: Source, data: bytes, edits: Iterable[Edit]) -> bytes:
    """Returns a file with its edits; of a notebook only the code of its cells changes."""
    if not source.cells:
        return spans.applied(data, edits)
    changed: dict[int, tuple[str, str]] = {}
    safe = within_cells(source, edits)
    for cell in source.cells:
        own = [_moved(edit, 1 - cell.first_line) for edit in safe if _is_in(cell, edit)]
        if own:
            after = spans.applied(cell.source.encode(), own).decode()
            changed[cell.number] = (cell.source, after)
    return with_cells(data, changed)


def applied_to(path: str, data: bytes, edits: Sequence[Edit]) -> bytes:
    """Returns a file with its edits; those of a notebook are in the lines of all cells together."""
    source = files.parse(path, data) if edits and path.endswith(".ipynb") else None
    return (
        applied(source, data, edits) if isinstance(source, Source) else spans.applied(data, edits)
    )


def origins(path: str, data: bytes, edits: Sequence[Edit]) -> spans.Origins:
    """Returns where each point of a changed file was before; of a notebook's cells together."""
    source = files.parse(path, data) if path.endswith(".ipynb") else None
    if isinstance(source, Source):
        return spans.Origins(source.text.encode(), within_cells(source, edits))
    return spans.Origins(data, edits)


def within_cells(source: Source, edits: Iterable[Edit]) -> list[Edit]:
    """Returns the edits so that none reaches beyond its cell.

    A deleted line takes its line break along; the last line of a cell has none.
    """
    found = []
    for edit in edits:
        for cell in source.cells:
            last = _last_line(cell)
            if _is_in(cell, edit) and edit.end_line > last:
                line, column = edit.line, edit.column
                if column == 0 and line > cell.first_line:
                    line, column = line - 1, len(source.line(line - 1))
                edit = Edit(line, column, last, len(source.line(last)), edit.text)
        found.append(edit)
    return found


def _is_in(cell: Cell, edit: Edit) -> bool:
    return cell.first_line <= edit.line <= _last_line(cell)


def _last_line(cell: Cell) -> int:
    return cell.first_line + cell.source.count("\n")


def _moved(edit: Edit, lines: int) -> Edit:
    return dataclasses.replace(edit, line=edit.line + lines, end_line=edit.end_line + lines)


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    """A value in a JSON text: where it is, and what it is."""

    start: int
    end: int
    value: object


def with_cells(data: bytes, changed: Mapping[int, tuple[str, str]]) -> bytes:
    """Returns a notebook with other code in some cells.

    ``changed`` has a cell's Python before and after, by its number from 1. Lines that are equal in
    both stay as the notebook has them, so that IPython's own lines are not lost.

    >>> data = b'{"cells": [{"cell_type":"code", "source":["a\\\\n", "b"]}]}'
    >>> with_cells(data, {1: ("a\\nb", "a\\nc")})
    b'{"cells": [{"cell_type":"code", "source":["a\\\\n", "c"]}]}'
    """
    text = data.decode("utf-8")
    for number, span in reversed(list(enumerate(_sources(text), start=1))):
        if number in changed and span is not None:
            text = text[: span.start] + _encoded(text, span, *changed[number]) + text[span.end :]
    return text.encode("utf-8")


def _sources(text: str) -> Iterator[_Span | None]:
    """Yields where the source of each cell is, in the order in which cells are numbered."""
    top = dict(_members(text, 1 if text.startswith("\ufeff") else 0))
    if "worksheets" in top:  # nbformat 3
        sheets = [span for span in _elements(text, top["worksheets"].start) if _is_object(span)]
        lists = [dict(_members(text, sheet.start)).get("cells") for sheet in sheets]
    else:
        lists = [top.get("cells")]
    for cells in lists:
        for cell in _elements(text, cells.start) if cells is not None else ():
            parts = dict(_members(text, cell.start)) if _is_object(cell) else {}
            yield parts.get("source", parts.get("input"))


def _is_object(span: _Span) -> bool:
    return isinstance(span.value, dict)


def _members(text: str, at: int) -> Iterator[tuple[str, _Span]]:
    """Yields the members of the object that begins at a place, up to a space before it."""
    at = _skip(text, _skip(text, at) + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        value, end = _DECODER.raw_decode(text, start)
        yield key, _Span(start, end, value)
        at = _after_comma(text, end)


def _elements(text: str, at: int) -> Iterator[_Span]:
    """Yields the elements of the list that begins at a place."""
    at = _skip(text, at + 1)
    while text[at] != "]":
        value, end = _DECODER.raw_decode(text, at)
        yield _Span(at, end, value)
        at = _after_comma(text, end)


def _after_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _encoded(text: str, span: _Span, before: str, after: str) -> str:
    """Returns the JSON of a cell's new source, in the manner of the old."""
    is_ascii = text[span.start : span.end].isascii()
    if isinstance(span.value, str):
        return json.dumps(_merged(span.value, before, after), ensure_ascii=is_ascii)
    parts = list(_elements(text, span.start))
    written = {str(part.value): text[part.start : part.end] for part in parts}
    merged = _merged("".join(str(part.value) for part in parts), before, after)
    opening, closing, between = "[", "]", ", "
    if parts:
        opening = text[span.start : parts[0].start]
        closing = text[parts[-1].end : span.end]
        between = "," + opening[1:]
    if len(parts) > 1:
        between = text[parts[0].end : parts[1].start]
    # A notebook has its lines with their ends.
    lines = [
        written.get(line) or json.dumps(line, ensure_ascii=is_ascii)
        for line in filter(None, re.split("(?<=\n)", merged))
    ]
    return opening + between.join(lines) + closing


def _merged(original: str, before: str, after: str) -> str:
    """Puts the change from ``before`` to ``after`` into a text with as many lines as ``before``."""
    old, new, kept = before.split("\n"), after.split("\n"), LINE_END.split(original)
    merged: list[str] = []
    for tag, i, j, k, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        merged += kept[i:j] if tag == "equal" else new[k:end]
    return spans.line_end(original).join(merged)
