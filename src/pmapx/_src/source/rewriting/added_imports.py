"""The top of a file: where an import goes, and functions below the imports.

An import that the file lacks is sorted into a section with its package, in the order that the file
has; one of the standard library gets a section of its own at the top. Others go behind the imports,
and so do functions, above the first line that needs them. Settings between imports, such as
``os.environ["XLA_FLAGS"] = ...``, stay above what they are for.
"""

import ast
import itertools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from pmapx._src.source.files import Source, first_line
from pmapx._src.source.rewriting.edits import Edit, between
from pmapx._src.source.rewriting.import_edits import inserted


class _Line(NamedTuple):
    """The statements on one logical line: a compound one, or simple ones between semicolons."""

    first: int
    last: int
    nodes: list[ast.stmt]


def added(
    source: Source,
    wanted: Iterable[str],
    *,
    changed: Collection[int] = (),
    functions: Sequence[str] = (),
    used: Collection[str] = (),
    below: Collection[str] = (),
    in_first_cell: bool = False,
) -> list[Edit]:
    """Returns the edits that give a file the imports that it lacks, and functions below them.

    They go above ``changed`` lines and the first use of ``used`` names, behind the functions
    ``below``; in a notebook into the cell of the first changed line, or the first one with code.
    """
    code = (node.lineno for node in source.tree.body if not isinstance(node, ast.Pass))
    lines = _lines(source, next(code, 1) if in_first_cell else min(changed, default=1))
    at = max([_end_of_imports(lines, set(used), set(changed)),
              *(n for n, line in enumerate(lines, 1) if _name(line) in below)])  # fmt: skip
    head, end = lines[:at], _end_of_block(source, lines[at - 1]) if at else 0
    edits, left = _sorted_in(source, head, end, wanted)
    if not left and not functions:
        return edits
    has_imports = any(map(_is_import, head))
    is_below_function = at > 0 and bool(_name(head[-1]))
    following = end + 1 if at else lines[0].first if lines else 0
    before = "\n\n" if left and is_below_function else ""
    if left and head and not has_imports and not is_below_function and not source.cells:
        before = "\n"
    if functions and (left or at):
        left.append("\n\n")
    text = before + "".join(left) + "\n\n".join(functions)
    if at == len(lines):
        return [*edits, inserted(source, end or len(source.lines), text)]
    start = following
    while at and functions and not source.line(following).strip():
        following += 1
    if functions:
        text += "\n\n"
    elif not has_imports and not source.cells and source.line(following).strip():
        text += "\n"
    return [*edits, between((start, 0), (following, 0), text)]


def beside(source: Source, line: str, above: ast.AST) -> Edit | None:
    """Returns the edit that adds an import beside those of its package at the top of the file.

    None if that package is imported nowhere above a node: what a function imports, it imports
    late on purpose, and flags in the environment are set before JAX is imported.
    """
    lines = [each for each in _lines(source) if each.last < above.lineno]  # type: ignore[attr-defined]
    place = _place_of(source, lines, line)
    if not place:
        return None
    if source.cells:
        wanted = ast.parse(line).body[0]
        last = [each for s in _sections(lines) for each in s if _is_like(each, wanted)][-1]
        return inserted(source, last.last, line + "\n")
    return between((place, 0), (place, 0), line + "\n")


def _sorted_in(
    source: Source, head: Sequence[_Line], end: int, wanted: Iterable[str]
) -> tuple[list[Edit], list[str]]:
    """Returns the edits for imports that have a place among the others, and those behind them."""
    edits, left, standard = [], [], []
    first = next((s[0].first for s in _sections(head)), 0) if not source.cells else 0
    for line in dict.fromkeys(wanted):
        place = 0 if source.cells else _place_of(source, head, line, is_new=True)
        if _is_imported(head, line):
            continue
        if place and place != end + 1:
            edits.append(between((place, 0), (place, 0), f"{line}\n"))
        elif not place and not source.cells and _package(ast.parse(line).body[0]) == _STANDARD:
            standard.append(f"{line}\n")
        else:
            left.append(f"{line}\n")
    if not first and not source.cells:
        standard, left = (sorted(lines, key=_order_of_line) for lines in (standard, left))
        left = [*standard, *(["\n"] if standard and left else []), *left]
    elif standard:
        edits.append(between((first, 0), (first, 0), "".join(standard) + "\n"))
    return edits, left


def _place_of(source: Source, lines: Sequence[_Line], text: str, *, is_new: bool = False) -> int:
    """Returns the line where an import sorts into a section with its package, 0 without one.

    In a section without an order, it is beside its package. The standard library counts as one. A
    package that ``is_new`` may go into the last section of other projects, if that has an order.
    """
    wanted = ast.parse(text).body[0]
    sections = _sections(lines)
    section = next((s for s in sections if any(_is_like(line, wanted) for line in s)), [])
    # In doubt, by the module in files that are indented as Google's are.
    orders = _ORDERS[1:] + _ORDERS[:1] if source.step == "  " else _ORDERS
    order = max(orders, key=lambda each: sum(_is_sorted(s, each) for s in sections))
    if not section and is_new and _package(wanted) != _STANDARD:
        own = {"", _STANDARD, *source.path.split(os.sep)}
        # It may start JAX, and stays below the settings for that.
        settings = [
            each.last for each in lines if not (_is_import(each) or _is_docstring(each.nodes[0]))
        ]
        below = [s for s in sections if s[0].first > max(settings, default=0)]
        others = [s for s in below if _package(s[0].nodes[0]) not in own]
        last = others[-1] if others else []
        last = last if len(last) == 1 or _is_sorted(last, order) else []
        return _sorted_among(last, wanted, order)
    among = section if _is_sorted(section, order) else []
    among = among or [line for line in section if _is_like(line, wanted)]
    return _sorted_among(among, wanted, order)


def _sorted_among(
    lines: Sequence[_Line], wanted: ast.stmt, order: Callable[[ast.stmt], Any]
) -> int:
    found = 0
    for line in lines:
        is_before = order(line.nodes[0]) < order(wanted)
        found = line.last + 1 if is_before else found or line.first
    return found


def _sections(lines: Sequence[_Line]) -> list[list[_Line]]:
    """Returns the imports that stand on lines of their own, with no blank ones between them."""
    found: list[list[_Line]] = []
    for line in lines:
        node = line.nodes[0]
        is_alone = len(line.nodes) == 1 and isinstance(node, (ast.Import, ast.ImportFrom))
        if not is_alone or getattr(node, "module", "") == "__future__":
            continue
        if found and found[-1][-1].last + 1 == line.first:
            found[-1].append(line)
        else:
            found.append([line])
    return found


def _is_like(line: _Line, wanted: ast.stmt) -> bool:
    return _package(wanted) in map(_package, _single(line.nodes[0]))


def _single(node: ast.stmt) -> list[ast.stmt]:
    """Returns ``import a, b`` as two imports."""
    return [ast.Import([name]) for name in node.names] if isinstance(node, ast.Import) else [node]


def _order(node: ast.stmt) -> tuple[bool, str]:
    """``import a`` before ``from a import b``, each by its module."""
    is_from = isinstance(node, ast.ImportFrom)
    return is_from, node.module or "" if is_from else node.names[0].name  # type: ignore[attr-defined]


def _order_of_line(line: str) -> tuple[bool, str]:
    return _order(ast.parse(line).body[0])


def _order_of_modules(node: ast.stmt) -> tuple[str, bool]:
    """By the module, however it is imported."""
    is_from, name = _order(node)
    return name.lower(), is_from


def _order_of_names(node: ast.stmt) -> str:
    """By the full name of what is imported, as Google's style has it."""
    is_from, name = _order(node)
    return (f"{name}.{node.names[0].name}" if is_from else name).lower()  # type: ignore[attr-defined]


_ORDERS: tuple[Callable[[ast.stmt], Any], ...] = (_order, _order_of_modules, _order_of_names)
_STANDARD = "python"


def _is_sorted(lines: Sequence[_Line], order: Callable[[ast.stmt], Any]) -> bool:
    """Returns whether imports stand in an order, with those of the file's own package last."""
    keys = [(getattr(line.nodes[0], "level", 0) > 0, order(line.nodes[0])) for line in lines]
    return len(keys) > 1 and all(one <= other for one, other in itertools.pairwise(keys))


def _package(node: ast.stmt) -> str:
    name = "" if getattr(node, "level", 0) else _order(node)[1].partition(".")[0]
    return _STANDARD if name in sys.stdlib_module_names else name


def _lines(source: Source, changed: int | None = None) -> list[_Line]:
    """Returns the logical lines at the top level of a file, or of the cell with a changed line."""
    cell = source.cell_of(changed) if changed is not None else None
    lines: list[_Line] = []
    for node in source.tree.body:
        first = first_line(node)
        last = node.end_lineno or node.lineno
        if cell is not None and source.cell_of(first)[0] != cell[0]:  # type: ignore[index]
            continue
        if lines and lines[-1].last >= first:
            lines[-1] = _Line(lines[-1].first, last, [*lines[-1].nodes, node])
        else:
            lines.append(_Line(first, last, [node]))
    return lines


def _end_of_imports(lines: Sequence[_Line], used: set[str], changed: set[int]) -> int:
    """Returns how many lines the first imports are, or the docstring where there are none."""
    end = 0
    for position, line in enumerate(lines):
        node = line.nodes[0]
        if not changed.isdisjoint(range(line.first, line.last + 1)) or _names(line) & used:
            break
        if _is_import(line) or (position == 0 and _is_docstring(node)):
            end = position + 1
        elif position == end and isinstance(node, ast.Pass):
            # A notebook's magic, which stays above.
            end = position + 1
        elif hasattr(node, "cases") or (
            hasattr(node, "body") and not isinstance(node, (ast.If, ast.Try))
        ):
            # Settings between imports, such as os.environ[...] = ..., do not end them.
            break
    return end


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def _name(line: _Line) -> str:
    """Returns the name of a function or class, empty for other statements."""
    return getattr(line.nodes[0], "name", "")


def _names(line: _Line) -> set[str]:
    parts = (part for node in line.nodes for part in ast.walk(node))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _is_import(line: _Line) -> bool:
    imports = (ast.Import, ast.ImportFrom)
    if isinstance(line.nodes[0], (ast.If, ast.Try)):
        return any(isinstance(part, imports) for part in ast.walk(line.nodes[0]))
    return any(isinstance(node, imports) for node in line.nodes)


def _is_imported(lines: Sequence[_Line], text: str) -> bool:
    """Returns whether one of these lines binds what a line with one import binds."""
    wanted = ast.dump(ast.parse(text).body[0].names[0])  # type: ignore[attr-defined]
    module = getattr(ast.parse(text).body[0], "module", None)
    return any(
        ast.dump(alias) == wanted
        for line in lines
        for node in line.nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        if getattr(node, "module", None) == module and not getattr(node, "level", 0)
        for alias in node.names
    )


def _end_of_block(source: Source, line: _Line) -> int:
    """Returns the last line of a statement with the indented comments below it, which are its."""
    end = following = line.last
    while hasattr(line.nodes[0], "body") and following < len(source.lines):
        following += 1
        text = source.line(following)
        if text.lstrip().startswith("#") and text[0].isspace():
            end = following
        elif text.strip():
            break
    return end
