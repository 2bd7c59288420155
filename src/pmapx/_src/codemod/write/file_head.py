"""Where a migrated file is given functions and imports: behind the imports at its top."""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Named
from pmapx._src.codemod.decide import axis_names
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.emitted import functions
from pmapx._src.emitted.functions import Manner
from pmapx._src.source.rewriting.edits import Edit, between
from pmapx._src.source.rewriting.import_edits import inserted


class _Line(NamedTuple):
    """The statements on one logical line: a compound one, or simple ones between semicolons."""

    first: int
    last: int
    nodes: list[ast.stmt]


def is_emitted(node: ast.AST, name: str, manner: Manner) -> bool:
    """Returns whether a function is the one that an earlier run wrote."""
    found = functions.find(name, manner).node
    return axis_names.without_name(found) == axis_names.without_name(node)


def added(
    module: Module,
    editor: Editor,
    used: Collection[str],
    manner: Manner,
    lines_wanted: Collection[str] = (),
) -> list[Edit]:
    """Returns the edit that gives a file, or a notebook's first cell with an edit, what it uses."""
    here = {
        node.name
        for node in module.source.tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    wanted = [name for name in functions.with_needs(used, manner) if name not in here]
    changed = {line for edit in editor.edits for line in range(edit.line, edit.end_line + 1)}
    lines = _lines(module, min(changed))
    at = _end_of_imports(lines, used, changed)
    imported = [
        f"{line}\n"
        for line in dict.fromkeys((*lines_wanted, *functions.imports(wanted, manner)))
        if not _is_imported(lines[:at], line)
    ]
    if module.env.find("jax") != frozenset({Named("jax")}):
        imported.append("import jax\n")
    end = _end_of_block(module, lines[at - 1]) if at else 0
    beside = _sorted_in(module, lines[:at], imported, end + 1 if wanted else 0)
    axis_name = axis_names.of_maps(module)
    texts = [
        axis_names.with_name(functions.text(name, editor.step, manner), axis_name)
        for name in wanted
    ]
    if not imported and not texts:
        return beside
    is_below_function = at > 0 and isinstance(lines[at - 1].nodes[0], ast.FunctionDef)
    before = "\n\n" if imported and is_below_function else ""
    if texts and (imported or at):
        imported.append("\n\n")
    text = before + "".join(imported) + "\n\n".join(texts)
    if at == 0:
        first = (lines[0].first, 0)
        return [*beside, between(first, first, text + ("\n\n" if texts else ""))]
    if at == len(lines):
        return [*beside, inserted(module.source, end, text)]
    start = following = end + 1
    while texts and not module.source.line(following).strip():
        following += 1
    return [*beside, between((start, 0), (following, 0), text + ("\n\n" if texts else ""))]


def imports_added(module: Module, wanted: Sequence[str]) -> list[Edit]:
    """Returns the edits that add imports that a file does not have."""
    lines = _lines(module, 1)
    found = [position for position, line in enumerate(lines, 1) if _is_import(line)]
    at = found[-1] if found else int(bool(lines) and _is_docstring(lines[0].nodes[0]))
    found = [at for at in found if getattr(lines[at - 1].nodes[0], "module", "") != "__future__"]
    imported = [f"{line}\n" for line in wanted if not _is_imported(lines[:at], line)]
    edits = _sorted_in(module, lines[:at], imported)
    if not imported:
        return edits
    standard = [line for line in imported if _package(ast.parse(line).body[0]) == "python"]
    others = [line for line in imported if line not in standard]
    if found:
        first = (lines[found[0] - 1].first, 0)
        edits += [between(first, first, "".join(standard) + "\n")] if standard else []
    else:
        others = [*standard, *(["\n"] if standard and others else []), *others]
    end = _end_of_block(module, lines[at - 1]) if at else 0
    before = "\n" if end and not found else ""
    after = "\n" if not found and lines[at:] else ""
    return (
        [*edits, inserted(module.source, end, before + "".join(others) + after)]
        if others
        else edits
    )


def _sorted_in(
    module: Module, lines: Sequence[_Line], imported: list[str], end: int = 0
) -> list[Edit]:
    """Takes those off a list of imports that have a place among others of their section.

    At ``end``, functions follow those that are left.
    """
    edits = []
    for line in list(imported):
        place = _place_of(module, lines, line)
        if place and place != end:
            imported.remove(line)
            edits.append(between((place, 0), (place, 0), line))
    return edits


def _place_of(module: Module, lines: Sequence[_Line], text: str) -> int:
    """Returns the line where an import sorts into a section with its package, 0 without one.

    In a section without an order, it is beside its package. The standard library counts as one.
    """
    wanted = ast.parse(text).body[0]
    sections = [] if module.source.cells else _sections(lines)
    section = next((s for s in sections if any(_is_like(line, wanted) for line in s)), [])
    # In doubt, by the module in files that are indented as Google's are.
    orders = _ORDERS[1:] + _ORDERS[:1] if Editor(module.source).step == "  " else _ORDERS
    order = max(orders, key=lambda each: sum(_is_sorted(s, each) for s in sections))
    beside = section if _is_sorted(section, order) else []
    beside = beside or [line for line in section if _is_like(line, wanted)]
    found = 0
    for line in beside:
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
    return _package(line.nodes[0]) == _package(wanted)


def _order(node: ast.stmt) -> tuple[bool, str]:
    """``import a`` before ``from a import b``, each by its module."""
    is_from = isinstance(node, ast.ImportFrom)
    return is_from, node.module or "" if is_from else node.names[0].name  # type: ignore[attr-defined]


def _order_of_modules(node: ast.stmt) -> tuple[str, bool]:
    """By the module, however it is imported."""
    is_from, name = _order(node)
    return name.lower(), is_from


def _order_of_names(node: ast.stmt) -> str:
    """By the full name of what is imported, as Google's style has it."""
    is_from, name = _order(node)
    return (f"{name}.{node.names[0].name}" if is_from else name).lower()  # type: ignore[attr-defined]


_ORDERS: tuple[Callable[[ast.stmt], Any], ...] = (_order, _order_of_modules, _order_of_names)


def _is_sorted(lines: Sequence[_Line], order: Callable[[ast.stmt], Any]) -> bool:
    """Returns whether imports stand in an order, with those of the file's own package last."""
    keys = [(getattr(line.nodes[0], "level", 0) > 0, order(line.nodes[0])) for line in lines]
    return len(keys) > 1 and all(one <= other for one, other in itertools.pairwise(keys))


def _package(node: ast.stmt) -> str:
    name = "" if getattr(node, "level", 0) else _order(node)[1].partition(".")[0]
    return "python" if name in sys.stdlib_module_names else name


def _lines(module: Module, changed: int) -> list[_Line]:
    """Returns the logical lines at the top level of a file, or of the cell with a changed line."""
    cell = module.source.cell_of(changed)
    lines: list[_Line] = []
    for node in module.source.tree.body:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        last = node.end_lineno or node.lineno
        if cell is not None and module.source.cell_of(first)[0] != cell[0]:  # type: ignore[index]
            continue
        if lines and lines[-1].last >= first:
            lines[-1] = _Line(lines[-1].first, last, [*lines[-1].nodes, node])
        else:
            lines.append(_Line(first, last, [node]))
    return lines


def _end_of_imports(lines: Sequence[_Line], used: Collection[str], changed: set[int]) -> int:
    """Returns how many lines the first imports are, or the docstring where there are none."""
    end = 0
    for position, line in enumerate(lines):
        node = line.nodes[0]
        if not changed.isdisjoint(range(line.first, line.last + 1)) or _names(line) & set(used):
            break
        if _is_import(line):
            end = position + 1
        elif position == 0 and _is_docstring(node):
            end = 1
        elif position == end and isinstance(node, ast.Pass):
            # A notebook's magic, which stays above.
            end = position + 1
        elif hasattr(node, "cases") or (
            hasattr(node, "body") and not isinstance(node, (ast.If, ast.Try))
        ):
            # Settings between imports, such as os.environ[...] = ..., do not end them.
            break
    # Behind what an earlier run wrote, since the new may use it.
    written = [
        position
        for position, line in enumerate(lines, start=1)
        if getattr(line.nodes[0], "name", "") in functions.names()
    ]
    return max([end, *written])


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


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


def _end_of_block(module: Module, line: _Line) -> int:
    """Returns the last line of a statement with the indented comments below it, which are its."""
    end = following = line.last
    while hasattr(line.nodes[0], "body") and following < len(module.source.lines):
        following += 1
        text = module.source.line(following)
        if text.lstrip().startswith("#") and text[0].isspace():
            end = following
        elif text.strip():
            break
    return end
