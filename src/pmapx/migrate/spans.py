"""Changes to a file as new texts for stretches of it; all else stays to the byte."""

from __future__ import annotations

import codecs
import dataclasses
import io
import re
import tokenize
from collections.abc import Iterable

from pmapx.migrate.values import Place


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Edit:
    """A stretch, in lines from 1 and columns from 0, and the text that takes its place."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str = ""


def replacing(place: Place, text: str) -> Edit:
    """Returns the edit that puts a text in a place."""
    return Edit(place.line, place.column, place.end_line, place.end_column, text)


def between(start: tuple[int, int], end: tuple[int, int], text: str = "") -> Edit:
    """Returns the edit of what lies between two points, each a line and a column."""
    return Edit(*start, *end, text)


def starts(place: Place) -> tuple[int, int]:
    """Returns the point where a place begins."""
    return place.line, place.column


def ends(place: Place) -> tuple[int, int]:
    """Returns the point where a place ends."""
    return place.end_line, place.end_column


def applied(data: bytes, edits: Iterable[Edit]) -> bytes:
    r"""Returns a file with its edits, in its own encoding and with its own line ends.

    >>> applied(b"a = f(b)\r\n", [Edit(1, 4, 1, 6), Edit(1, 7, 1, 8, "\n")])
    b'a = b\r\n\r\n'

    Raises:
      ValueError: if two edits overlap.
      UnicodeEncodeError: if a new text has no place in the file's encoding.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = data.decode(encoding).removeprefix(codecs.BOM_UTF8.decode("utf-8"))
    newline = re.search("\r\n|\r|\n", text)
    begins = [0, *(found.end() for found in re.finditer("\r\n|\r|\n", text))]
    parts, done = [], 0
    for edit in sorted(set(edits)):
        start = begins[edit.line - 1] + edit.column
        end = begins[edit.end_line - 1] + edit.end_column
        if start < done:
            raise ValueError(f"two changes overlap at line {edit.line}")
        parts += [text[done:start], edit.text.replace("\n", newline[0] if newline else "\n")]
        done = end
    changed = "".join([*parts, text[done:]])
    return changed.encode(encoding)
