"""Bytes, times, lines of code and tables as text."""

import itertools
import os
import re
from collections.abc import Sequence


def in_bytes(count: int) -> str:
    """Formats a number of bytes with three digits.

    >>> in_bytes(96), in_bytes(1536), in_bytes(5 * 2**30)
    ('96 B', '1.50 KiB', '5.00 GiB')
    """
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    if unit == "B":
        return f"{count} B"
    return f"{size:.{2 if size < 10 else 1 if size < 100 else 0}f} {unit}"


def parsed_bytes(text: str | int) -> int:
    """Parses a number of bytes with its unit.

    >>> parsed_bytes("2MiB"), parsed_bytes("1.5 GB"), parsed_bytes(96)
    (2097152, 1500000000, 96)
    """
    if isinstance(text, int):
        return text
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?\s*", text)
    if found is None:
        raise ValueError(f"{text!r} is not a number of bytes, such as 2MiB")
    power = " KMGT".index(found[2].upper() or " ")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


def in_seconds(seconds: float | None) -> str:
    """Formats a time with its unit; a dash if there is none.

    >>> in_seconds(0.00123), in_seconds(None)
    ('1.23 ms', '-')
    """
    if seconds is None:
        return "-"
    for factor, unit in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        value = seconds * factor
        if value < 1000:
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{seconds:.2f} s"


def place(path: str | None) -> str:
    """Formats ``file:line`` relative to the current folder, or with the file's name alone.

    >>> place("/somewhere/else/train.py:12")
    'train.py:12'
    """
    if not path:
        return "-"
    file, colon, line = path.rpartition(":")
    if not colon:
        return path
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{os.path.basename(file) if relative.startswith('..') else relative}:{line}"


def counted(count: int, word: str) -> str:
    """Formats a count with its noun.

    >>> counted(1, "call"), counted(1024, "call")
    ('1 call', '1,024 calls')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def arrays(paths: Sequence[str]) -> str:
    """Lists arrays by their paths; more than three of one argument are summed up.

    >>> arrays(["w", "s.stats['a']", "s.stats['b']", "s.stats['c']", "s.stats['d']"])
    'w, s.stats (4 arrays)'
    """
    roots: dict[str, list[list[str]]] = {}
    for path in paths:
        keys = parts(path)
        roots.setdefault(keys[0], []).append(keys)
    shown = []
    for together in roots.values():
        if len(together) <= 3:
            shown += ["".join(keys) for keys in together]
        else:
            same = itertools.takewhile(
                lambda keys: len(set(keys)) == 1, zip(*together, strict=False)
            )
            shown.append(f"{''.join(keys[0] for keys in same)} ({len(together)} arrays)")
    return listed(shown)


def parts(path: str) -> list[str]:
    """Splits the path of an array into its argument and the keys in that.

    >>> parts("state.params['w']")
    ['state', '.params', "['w']"]
    """
    return re.findall(r"^[^\[.]+|\[[^\]]*\]|\.[^\[.]+", path) or [path]


def is_part(path: str, name: str) -> bool:
    """Returns whether a leaf is an argument, or a part of it.

    >>> is_part("state.params['w']", "state"), is_part("states", "state")
    (True, False)
    """
    return re.match(rf"{re.escape(name)}(?![\w])", path) is not None


def listed(words: Sequence[str], most: int = 3) -> str:
    """Lists the first of many.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    if len(words) <= most + 1:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most} more"


def first(lines: Sequence[str], most: int) -> list[str]:
    """Returns the first of many lines, and one that counts the others.

    >>> first(["a", "b", "c"], 1)
    ['a', 'and 2 more']
    """
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return [*lines[:most], *more]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """Aligns rows under their heads; columns in ``right`` to the right.

    >>> table(["a", "n"], [["x", "10"], ["yy", "5"]], right=(1,))
    ['a    n', 'x   10', 'yy   5']
    """
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if k in right else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
