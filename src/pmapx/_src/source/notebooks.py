"""Jupyter notebooks: their code cells as Python, with IPython's own lines blanked."""

import dataclasses
import json
import re
from typing import Any

from pmapx._src.source.location import LINE_END

# Cell magics whose cell is still Python.
_PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python", "%%python3")
_MAGIC_LINE = re.compile(r"^(\s*)(?:[%!?]|.*\?{1,2}\s*$)")
_TIMED = re.compile(r"^([ \t]*)%time[ \t]+(?=\S)", re.MULTILINE)
_MAGIC_VALUE = re.compile(r"^(\s*[\w.,\s\[\]]+=\s*)[%!].*$")


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """A code cell: its number from 1 among all cells, and its Python."""

    number: int
    source: str
    first_line: int = 1


def read_cells(data: bytes) -> list[Cell]:
    """Returns the code cells of a notebook; raises ValueError if it is none.

    >>> read_cells(b'{"cells": [{"cell_type": "code", "source": ["%time\\\\n", "x = 1"]}]}')
    [Cell(number=1, source='pass\\nx = 1', first_line=1)]
    """
    return [Cell(number, _python(text)) for number, text in texts(data)]


def texts(data: bytes) -> list[tuple[int, str]]:
    """Returns the code cells of a notebook as they are, with their numbers; raises ValueError."""
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"not a notebook: {error}") from None
    return [
        (number, _text(cell))
        for number, cell in enumerate(_cells(content), start=1)
        if isinstance(cell, dict) and cell.get("cell_type") == "code"
    ]


def with_timed_lines(data: bytes) -> bytes:
    """Returns a notebook to run, in which ``%time x = f()`` is ``x = f()``.

    >>> with_timed_lines(b'{"cells": [{"cell_type": "code", "source": "%time x = 1"}]}')
    b'{"cells": [{"cell_type": "code", "source": "x = 1"}]}'
    """
    content = json.loads(data.decode("utf-8-sig"))
    for cell in _cells(content):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            cell["source" if "source" in cell else "input"] = _TIMED.sub(r"\1", _text(cell))
    return json.dumps(content).encode()


def _cells(content: Any) -> list[Any]:
    if not isinstance(content, dict):
        raise ValueError("not a notebook: no JSON object")
    if "worksheets" in content:  # nbformat 3
        sheets = [sheet for sheet in content["worksheets"] if isinstance(sheet, dict)]
        return [cell for sheet in sheets for cell in sheet.get("cells", [])]
    cells = content.get("cells", [])
    if not isinstance(cells, list):
        raise ValueError("not a notebook: no list of cells")
    return cells


def _text(cell: dict[str, Any]) -> str:
    source = cell.get("source", cell.get("input", ""))
    return source if isinstance(source, str) else "".join(map(str, source))


def _python(source: str) -> str:
    lines = LINE_END.split(source)
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and not first.startswith(_PYTHON_MAGICS):
        return "\n".join("" for _ in lines)
    kept, continued, indent = [], False, ""
    for line in lines:
        # A backslash continues a magic's line, whatever the indentation.
        is_magic = continued or bool(_MAGIC_LINE.match(line) and not _is_python(line))
        if is_magic and not continued:
            indent = line[: len(line) - len(line.lstrip())]
        continued = is_magic and line.endswith("\\")
        if is_magic:
            kept.append(indent + "pass")
        else:
            kept.append(_MAGIC_VALUE.sub(r"\1None", line))
    return "\n".join(kept)


def _is_python(line: str) -> bool:
    """A line within a multi-line expression or string may begin with % or end with ?."""
    stripped = line.strip()
    return stripped.startswith("% ") or (
        stripped.endswith("?") and re.match(r"^[\w.]+\?{1,2}$", stripped) is None
    )
