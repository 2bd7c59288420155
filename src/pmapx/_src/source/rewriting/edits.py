"""Changes to a file as new texts for spans of it; the rest stays byte for byte."""

import bisect
import dataclasses
from collections.abc import Iterable

from pmapx._src.source.files import decoded
from pmapx._src.source.location import LINE_END, Place


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Edit:
    """A span, in lines from 1 and columns from 0, and the text that takes its place."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str = ""

    def place(self, path: str) -> Place:
        return Place(path, self.line, self.column, self.end_line, self.end_column)


def replacing(place: Place, text: str) -> Edit:
    return Edit(place.line, place.column, place.end_line, place.end_column, text)


def between(start: tuple[int, int], end: tuple[int, int], text: str = "") -> Edit:
    """Returns the edit of what is between two points, each a line and a column."""
    return Edit(*start, *end, text)


def lines_of(edits: Iterable[Edit]) -> set[int]:
    """Returns the lines that edits change."""
    return {line for edit in edits for line in range(edit.line, edit.end_line + 1)}


def starts(place: Place) -> tuple[int, int]:
    return place.line, place.column


def ends(place: Place) -> tuple[int, int]:
    return place.end_line, place.end_column


def keeping(place: Place, kept: Place, before: str = "", after: str = "") -> tuple[Edit, Edit]:
    """Returns the edits that leave only a part of a place, between two texts."""
    return (
        between(starts(place), starts(kept), before),
        between(ends(kept), ends(place), after),
    )


def applied(data: bytes, edits: Iterable[Edit]) -> bytes:
    r"""Returns a file with its edits, in its own encoding and with its own line ends.

    >>> applied(b"a = f(b)\r\n", [Edit(1, 4, 1, 6), Edit(1, 7, 1, 8, "\n")])
    b'a = b\r\n\r\n'

    Raises ValueError if two edits overlap, UnicodeEncodeError if the encoding lacks a character.
    """
    encoding, text = decoded(data)
    newline = line_end(text)
    parts, done = [], 0
    for start, end, edit in _offsets(text, edits):
        if start < done:
            raise ValueError(f"two changes overlap at line {edit.line}")
        parts += [text[done:start], edit.text.replace("\n", newline)]
        done = end
    return "".join([*parts, text[done:]]).encode(encoding)


class Origins:
    """Where each point of a changed file was before."""

    def __init__(self, data: bytes, edits: Iterable[Edit]) -> None:
        _, text = decoded(data)
        _, after = decoded(applied(data, edits))
        newline = line_end(text)
        self._before, self._after = _begins(text), _begins(after)
        # The old offset, the new one and the new length of each changed span.
        self._changed: list[tuple[int, int, int]] = [(0, 0, 0)]
        # Where the old span of each ends.
        self._ends = [0]
        shift = 0
        for start, end, edit in _offsets(text, edits):
            length = len(edit.text.replace("\n", newline))
            self._changed.append((start, start + shift, length))
            self._ends.append(end)
            shift += length - (end - start)

    def place(self, place: Place) -> Place:
        """Returns a place of the new file where it was in the old."""
        start = self._point(place.line, place.column)
        return Place(place.path, *start, *self._point(place.end_line, place.end_column))

    def _point(self, line: int, column: int) -> tuple[int, int]:
        offset = self._after[min(line, len(self._after)) - 1] + column
        number = bisect.bisect_right([new for _, new, _ in self._changed], offset) - 1
        old, new, length = self._changed[number]
        was = old if offset < new + length else self._ends[number] + offset - new - length
        found = bisect.bisect_right(self._before, was)
        return found, was - self._before[found - 1]


def line_end(text: str) -> str:
    found = LINE_END.search(text)
    return found[0] if found else "\n"


def _begins(text: str) -> list[int]:
    return [0, *(found.end() for found in LINE_END.finditer(text))]


def _offsets(text: str, edits: Iterable[Edit]) -> list[tuple[int, int, Edit]]:
    # The line after the last is the end, also where no newline ends the last.
    begins = [*_begins(text), len(text)]
    return [
        (begins[edit.line - 1] + edit.column, begins[edit.end_line - 1] + edit.end_column, edit)
        for edit in sorted(set(edits))
    ]
