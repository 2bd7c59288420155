"""Edits of imports: a name that is imported from elsewhere, a module that is imported too."""

import ast
import itertools
from collections.abc import Mapping

from pmapx._src.source.files import Source
from pmapx._src.source.rewriting.edits import Edit, between, ends, replacing, starts


def moved(
    source: Source,
    statement: ast.ImportFrom,
    moves: Mapping[ast.alias, str],
    *,
    is_renamed: bool = False,
) -> list[Edit]:
    """Returns the edits that import some names of a statement by their new full names.

    What the file calls them stays, ``host_id`` becomes ``process_index as host_id``, unless it is
    renamed too.
    """
    found, below = [], dict[str, list[str]]()
    for alias, new in moves.items():
        module, _, name = new.rpartition(".")
        bound = name if is_renamed else alias.asname or alias.name
        text = name if name == bound else f"{name} as {bound}"
        if module == statement.module and not statement.level:
            found.append(replacing(source.place(alias), text))
        else:
            below.setdefault(module, []).append(text)
    if not below:
        return found
    taken = [alias for alias in moves if moves[alias].rpartition(".")[0] in below]
    known = _imported_below(source, statement)
    left = {key: [text for text in texts if (key, text) not in known]
            for key, texts in below.items()}  # fmt: skip
    lines = [f"from {module} import {', '.join(names)}" for module, names in left.items() if names]
    if not lines:
        return [*found, *without(source, statement, taken, source.tree)]
    place = source.place(statement)
    is_alone = stands_alone(source, statement)
    joint = "\n" + source.line(place.line)[: place.column] if is_alone else "; "
    if len(taken) == len(statement.names):
        return [replacing(place, joint.join(lines))]
    end = (place.end_line, len(source.line(place.end_line))) if is_alone else ends(place)
    return [
        *found,
        *_without(source, statement.names, taken),
        between(end, end, "".join(joint + line for line in lines)),
    ]


def _imported_below(source: Source, statement: ast.stmt) -> set[tuple[str | None, str]]:
    """Returns what the imports right below one of the top level import, each as it is written."""
    body = source.tree.body
    below = body[body.index(statement) + 1 :] if statement in body else []
    imports = itertools.takewhile(
        lambda each: isinstance(each, (ast.Import, ast.ImportFrom)), below
    )
    return {
        (each.module, ast.unparse(alias))
        for each in imports
        if isinstance(each, ast.ImportFrom) and not each.level
        for alias in each.names
    }


def without(
    source: Source, statement: ast.Import | ast.ImportFrom, taken: list[ast.alias], around: ast.AST
) -> list[Edit]:
    """Returns the edits that take names out of an import, or the import if none is left."""
    if len(taken) == len(statement.names):
        return removed(source, statement, around)
    return _without(source, statement.names, taken)


def _without(source: Source, names: list[ast.alias], taken: list[ast.alias]) -> list[Edit]:
    """Takes names out of a list of which some stay, each with its comma."""
    found = []
    last_kept = max(position for position, alias in enumerate(names) if alias not in taken)
    for alias, following in itertools.pairwise(names[: last_kept + 1]):
        if alias in taken:
            found.append(between(starts(source.place(alias)), starts(source.place(following))))
    if last_kept < len(names) - 1:
        kept, last = source.place(names[last_kept]), source.place(names[-1])
        found.append(between(ends(kept), ends(last)))
    return found


def inserted(source: Source, line: int, text: str) -> Edit:
    """Puts lines after a line of a file, of which 0 is the one before the first."""
    ends_cell = any(line + 1 == cell.first_line for cell in source.cells)
    if line < len(source.lines) and not (line and ends_cell):
        return between((line + 1, 0), (line + 1, 0), text)
    end = (line, len(source.line(line)))
    return between(end, end, "\n" + text.removesuffix("\n"))


def stands_alone(source: Source, statement: ast.AST) -> bool:
    """Returns whether a statement's lines have nothing else on them but a comment."""
    place = source.place(statement)
    before = source.line(place.line)[: place.column]
    after = source.line(place.end_line)[place.end_column :].strip()
    return not before.strip() and (not after or after.startswith("#"))


def removed(source: Source, statement: ast.stmt, around: ast.AST) -> list[Edit]:
    """Returns the edits that delete a statement; ``pass`` takes its place if it is alone."""
    bodies = [part for part in vars(around).values() if isinstance(part, list)]
    is_only = any(body == [statement] for body in bodies) and not isinstance(around, ast.Module)
    place = source.place(statement)
    if is_only or not stands_alone(source, statement):
        return [replacing(place, "pass")]
    last = place.end_line
    is_first = place.line == 1 or place.line in [cell.first_line for cell in source.cells]
    while is_first and last < len(source.lines) and not source.line(last + 1).strip():
        last += 1
    return [between((place.line, 0), (last + 1, 0))]


def without_lines(source: Source, first: int, last: int) -> Edit:
    """Returns the edit that deletes lines, at the end of a file with the blank ones above them."""
    is_end = not source.cells and not any(map(str.strip, source.lines[last:]))
    while is_end and first > 1 and not source.line(first - 1).strip():
        first -= 1
    return between((first, 0), (last + 1, 0))
