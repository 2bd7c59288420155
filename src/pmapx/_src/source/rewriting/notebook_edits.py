"""Edits of a file's text, or of the text that a notebook's code cells make together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from pmapx._src.source import files
from pmapx._src.source.files import Source
from pmapx._src.source.notebooks import Cell
from pmapx._src.source.rewriting import edits as spans
from pmapx._src.source.rewriting import notebook_cells
from pmapx._src.source.rewriting.edits import Edit


def applied(source: Source, data: bytes, edits: Iterable[Edit]) -> bytes:
    """Returns a file with its edits; of a notebook only the code of its cells changes.

    Raises:
      ValueError: if two edits overlap.
      UnicodeEncodeError: if a new text has no place in the file's encoding.
    """
    if not source.cells:
        return spans.applied(data, edits)
    changed: dict[int, tuple[str, str]] = {}
    safe = within_cells(source, edits)
    for cell in source.cells:
        own = [_moved(edit, 1 - cell.first_line) for edit in safe if _is_in(cell, edit)]
        if own:
            after = spans.applied(cell.source.encode(), own).decode()
            changed[cell.number] = (cell.source, after)
    return notebook_cells.with_cells(data, changed)


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

    A line that goes takes the line break behind it along, which the last of a cell has not.
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
