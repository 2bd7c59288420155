"""Reading a file: its bytes, and its tree."""

from __future__ import annotations

import ast
import bisect
import codecs
import contextlib
import dataclasses
import io
import os
import re
import stat
import sys
import tokenize
import warnings
from typing import TYPE_CHECKING

from pmapx._src.source.command_error import reason
from pmapx._src.source.discovery import Unreadable
from pmapx._src.source.location import LINE_END, Place

if TYPE_CHECKING:
    from pmapx._src.source import notebooks

# Larger files are generated ones; notebooks carry their pictures.
LARGEST = {".py": 4 << 20, ".pyi": 4 << 20, ".ipynb": 64 << 20}


def imported_words(data: bytes) -> set[bytes]:
    """Returns the words on lines with an import, at no more cost than finding those lines.

    >>> sorted(imported_words(b"x = 1\\nfrom a.b import c"))
    [b'a', b'b', b'c', b'from', b'import']
    """
    words: set[bytes] = set()
    found = data.find(b"import")
    while found >= 0:
        end = data.find(b"\n", found)
        end = len(data) if end < 0 else end
        words.update(_WORD.findall(data, data.rfind(b"\n", 0, found) + 1, end))
        found = data.find(b"import", end)
    return words


_WORD = re.compile(rb"\w+")
_PICTURE = b'"image/png": "'
# Type parameters and type aliases.
_OF_PYTHON_3_12 = re.compile(r"\s*(?:(?:async\s+)?def\s+\w+\[|class\s+\w+\[|type\s+\w+\s*[\[=])")


# Pipes and devices would block; the open file is asked, so nothing can change between.
_NOT_WAITING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)


def read_bytes(path: str) -> bytes | Unreadable:
    """Returns what is in a file, or why it is not read."""
    limit = LARGEST[".ipynb" if path.endswith(".ipynb") else ".py"]
    try:
        descriptor = os.open(path, _NOT_WAITING)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return Unreadable(path, "not a plain file")
            if status.st_size > limit:
                size = f"{status.st_size / 2**20:.1f} MiB"
                return Unreadable(path, f"too large to check ({size}, the limit is {limit >> 20})")
            data = os.read(descriptor, status.st_size)
            while len(data) < status.st_size:
                more = os.read(descriptor, status.st_size - len(data))
                if not more:
                    break
                data += more
            return data
        finally:
            os.close(descriptor)
    except OSError as error:
        return Unreadable(path, reason(error))
    except ValueError as error:
        return Unreadable(path, str(error))


def read_code(path: str) -> bytes | Unreadable:
    """Returns the contents of a file without a notebook's pictures, which may be most of it."""
    data = read_bytes(path)
    if isinstance(data, Unreadable) or not path.endswith(".ipynb"):
        return data
    first, *others = data.split(_PICTURE)
    return _PICTURE.join([first, *(other[other.find(b'"') :] for other in others)])


@dataclasses.dataclass(slots=True, eq=False)
class Source:
    """A file that was read: its text, its tree, and its lines."""

    path: str
    text: str
    tree: ast.Module
    cells: tuple[notebooks.Cell, ...] = ()
    # Cells that do not parse: the number, the reason, and the text.
    problems: tuple[tuple[int, str, str], ...] = ()
    # The original file, if this is an intermediate text, which follows no style.
    before: Source | None = None
    _lines: list[str] | None = None

    @property
    def lines(self) -> list[str]:
        """The lines as Python counts them."""
        if self._lines is None:
            text = self.text
            self._lines = LINE_END.split(text) if "\r" in text else text.split("\n")
        return self._lines

    def line(self, number: int) -> str:
        """Returns a line by its number from 1, without its end."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def indent(self, number: int) -> str:
        """Returns the white space at the beginning of a line."""
        text = self.line(number)
        return text[: len(text) - len(text.lstrip())]

    @property
    def step(self) -> str:
        """The file's own step of indentation: that of its first block."""
        for node in self.tree.body:
            for inner in ast.walk(node):
                if isinstance(inner, ast.match_case):
                    return self.indent(inner.pattern.lineno)
                if inner is not node and isinstance(inner, ast.stmt):
                    indent = self.indent(inner.lineno)
                    if indent and len(indent) == self.place(inner).column:
                        return indent
        return "    "

    def place(self, node: ast.AST) -> Place:
        """Returns the place of a node, in characters where ``ast`` counts bytes."""
        line, end_line = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        return Place(
            self.path,
            line,
            self._characters(line, node.col_offset),  # type: ignore[attr-defined]
            end_line,
            self._characters(end_line, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def segment(self, place: Place) -> str:
        """Returns the text at a place."""
        return self.between((place.line, place.column), (place.end_line, place.end_column))

    def between(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        """Returns the text between two points, each a line and a column."""
        if start[0] == end[0]:
            return self.line(start[0])[start[1] : end[1]]
        between = [self.line(number) for number in range(start[0] + 1, end[0])]
        return "\n".join([self.line(start[0])[start[1] :], *between, self.line(end[0])[: end[1]]])

    def cell_of(self, line: int) -> tuple[int, int] | None:
        """Returns a notebook's cell and the line in it, both from 1."""
        for cell in reversed(self.cells):
            if line >= cell.first_line:
                return cell.number, line - cell.first_line + 1
        return None

    def _characters(self, line: int, column: int) -> int:
        # Python stores whether a string is ASCII: the check costs nothing.
        if self.text.isascii() or (text := self.line(line)).isascii():
            return column
        return len(text.encode("utf-8", "surrogatepass")[:column].decode("utf-8", "ignore"))


def first_line(statement: ast.AST) -> int:
    """Returns the line of a statement, or of its first decorator."""
    decorators = getattr(statement, "decorator_list", None)
    line: int = decorators[0].lineno if decorators else statement.lineno  # type: ignore[attr-defined]
    return line


def parse(path: str, data: bytes) -> Source | Unreadable:
    """Returns the file's tree, or one line on why it has none."""
    try:
        if path.endswith(".ipynb"):
            return _parse_notebook(path, data)
        if b"\0" in data:
            return Unreadable(path, "binary: it has null bytes")
        _, text = decoded(data)
        return Source(path, text, _tree(text))
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        return Unreadable(path, f"syntax error: {where}{_one_line(error.msg)}{_hint(error)}")
    except (UnicodeDecodeError, LookupError) as error:
        return Unreadable(path, f"wrong encoding: {_one_line(str(error))}")
    except (RecursionError, MemoryError):
        return Unreadable(path, "nested too deeply to parse")
    except ValueError as error:
        return Unreadable(path, _one_line(str(error)))


def _hint(error: SyntaxError) -> str:
    """Says when it is an older Python that does not read what a newer one does."""
    if sys.version_info < (3, 12) and _OF_PYTHON_3_12.match(error.text or ""):
        return " (it is Python 3.12: run pmapx with that or a newer one)"
    return ""


def decoded(data: bytes) -> tuple[str, str]:
    """Returns the encoding that a file declares, and its text without a byte order mark."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return encoding, data.decode(encoding).removeprefix(codecs.BOM_UTF8.decode("utf-8"))


def _tree(text: str) -> ast.Module:
    with warnings.catch_warnings():
        # Other people's invalid escapes are not our user's business.
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _parse_notebook(path: str, data: bytes) -> Source:
    from pmapx._src.source import notebooks

    cells = notebooks.read_cells(data)
    with contextlib.suppress(SyntaxError):
        source = _joined(path, cells)
        starts = [cell.first_line for cell in source.cells]
        if all(_is_in_one_cell(statement, starts) for statement in source.tree.body):
            return source
    kept, problems = [], []
    for cell in cells:
        try:
            _tree(cell.source)
            kept.append(cell)
        except SyntaxError as error:
            problem = (cell.number, f"syntax error: {_one_line(error.msg)}", cell.source)
            problems.append(problem)
    return _joined(path, kept, tuple(problems))


def _joined(
    path: str, cells: list[notebooks.Cell], problems: tuple[tuple[int, str, str], ...] = ()
) -> Source:
    placed, line = [], 1
    for cell in cells:
        placed.append(dataclasses.replace(cell, first_line=line))
        line += cell.source.count("\n") + 1
    text = "\n".join(cell.source for cell in cells)
    return Source(path, text, _tree(text), tuple(placed), problems)


def _is_in_one_cell(statement: ast.stmt, starts: list[int]) -> bool:
    """Returns whether a statement is within one cell, given the first line of each."""
    parts = [statement, *getattr(statement, "decorator_list", [])]
    first, last = min(part.lineno for part in parts), statement.end_lineno or 0
    return bisect.bisect(starts, first) == bisect.bisect(starts, last)


def _one_line(message: str) -> str:
    return " ".join(message.split())[:200]


def is_test(path: str) -> bool:
    """Returns whether a file has tests, by its name."""
    name = os.path.basename(path)
    return name.startswith(("test_", "conftest")) or name.endswith("_test.py")
