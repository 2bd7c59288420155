"""Names that the rewrite leaves unused: their assignments, functions and imports are removed.

So do assignments of a name to itself, as ``state = unreplicate(state)`` becomes. Only what the file
used before counts; what was unused then is left to a linter.
"""

from __future__ import annotations

import ast
import collections
import os
import re
from collections.abc import Callable, Iterator, Mapping, Set

from pmapx._src.analysis.syntax import walk
from pmapx._src.source import files
from pmapx._src.source.discovery import Unreadable
from pmapx._src.source.files import Source
from pmapx._src.source.rewriting import import_edits, notebook_edits
from pmapx._src.source.rewriting.edits import Edit

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Expressions that do nothing but give a value.
_PURE = (
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.BinOp,
    ast.UnaryOp, ast.Compare, ast.IfExp, ast.Starred, ast.Lambda, ast.expr_context, ast.operator,
    ast.unaryop, ast.cmpop,
)  # fmt: skip
_PURE_CALLS = frozenset(
    {"device_count", "local_device_count", "devices", "local_devices", "process_count", "len"}
)
_READ_BY_NAME = frozenset({"locals", "globals", "vars", "eval", "exec"})
# A comment above what goes that is about it.
_ABOUT_DEVICES = re.compile(
    r"\s*#.*(?:shard|split|reshap|replica|device|stack|\bcop(?:y|ies)\b)", re.IGNORECASE
)
MOST_PASSES = 8
_Scope = tuple[str, int]


def without_unused(
    path: str, before: bytes, after: bytes, is_used_elsewhere: Callable[[str], bool]
) -> bytes:
    """Returns a rewritten file without the names that it used before, and does not use now.

    ``is_used_elsewhere`` is for names at the top level: whether another file may take one.
    """
    original, source = files.parse(path, before), files.parse(path, after)
    if isinstance(original, Unreadable) or isinstance(source, Unreadable):
        return after
    same = _definitions(original).keys() & _definitions(source).keys()
    used = {scope: _reads(node) for scope, node in _scopes(original, same)}
    kept = {scope: _assigned_to_themselves(node) for scope, node in _scopes(original, same)}
    for _ in range(MOST_PASSES):
        found = [*_unused(source, used, same, is_used_elsewhere), *_idle(source, kept, same)]
        edits = list(dict.fromkeys(edit for several in found for edit in several))
        shorter = notebook_edits.applied(source, after, edits) if edits else after
        parsed = files.parse(path, shorter) if edits else source
        if not edits or isinstance(parsed, Unreadable):
            return after
        after, source = shorter, parsed
    return after


def _definitions(source: Source) -> dict[str, ast.stmt]:
    """Returns the functions and classes of the top level by their text."""
    return {
        "\n".join(source.lines[node.lineno - 1 : node.end_lineno]): node
        for node in source.tree.body
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef))
    }


def _scopes(source: Source, same: Set[str]) -> Iterator[tuple[_Scope, ast.AST]]:
    """Yields a file and its functions, each by its qualified name and its number among those.

    Definitions with the same text before and after are left out.
    """
    seen: collections.Counter[str] = collections.Counter()
    left_out = {node for text, node in _definitions(source).items() if text in same}
    for name, node in _named_scopes(source.tree, "", left_out):
        yield (name, seen[name]), node
        seen[name] += 1


def _named_scopes(
    tree: ast.AST, name: str, left_out: Set[ast.AST]
) -> Iterator[tuple[str, ast.AST]]:
    if not isinstance(tree, ast.ClassDef):
        yield name, tree
    for node in _inside(tree, (*_FUNCTIONS, ast.ClassDef)):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and node not in left_out:
            yield from _named_scopes(node, f"{name}.{node.name}", left_out)


def _inside(tree: ast.AST, kinds: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """Yields the nodes below one, except for those inside nodes of some kinds."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, kinds):
            yield from _inside(node, kinds)


def _reads(tree: ast.AST) -> set[str]:
    return {
        node.id
        for node in walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
    }


def _unused(
    source: Source,
    used: dict[_Scope, set[str]],
    same: Set[str],
    is_used_elsewhere: Callable[[str], bool],
) -> Iterator[list[Edit]]:
    strings = {
        node.value
        for node in walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    is_package = os.path.exists(os.path.join(os.path.dirname(source.path), "__init__.py"))
    # Nothing imports what only the main program binds.
    of_main = {
        part
        for node in source.tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        for statement in node.body
        for part in ast.walk(statement)
    }
    for scope, tree in _scopes(source, same):
        reads = _reads(tree)
        if reads & _READ_BY_NAME or scope not in used:
            continue
        gone = used[scope] - reads - strings
        is_top = isinstance(tree, ast.Module)
        removed: dict[tuple[ast.AST, ast.AST], list[str]] = {}
        for name, bound in _bindings(tree).items() if gone else ():
            if name not in gone or (is_top and is_used_elsewhere(name)):
                continue
            is_own = name.startswith("_") or all(node in of_main for node, _ in bound)
            is_public = is_top and is_package and not is_own
            if all(_is_removable(source, *each, is_public) for each in bound):
                for each in bound:
                    removed.setdefault(each, []).append(name)
        for (statement, around), names in removed.items():
            yield _removed(source, statement, around, names)


def _assigned_to_themselves(scope: ast.AST) -> dict[str, list[tuple[ast.Assign, ast.AST]]]:
    found: dict[str, list[tuple[ast.Assign, ast.AST]]] = {}
    for name, bound in _bindings(scope).items():
        for node, around in bound:
            if isinstance(node, ast.Assign) and getattr(node.value, "id", "") == name:
                found.setdefault(name, []).append((node, around))
    return found


def _idle(
    source: Source, kept: Mapping[_Scope, Mapping[str, object]], same: Set[str]
) -> Iterator[list[Edit]]:
    """Yields the edits that drop assignments of a name to itself that the rewrite made."""
    for scope, tree in _scopes(source, same):
        found = _assigned_to_themselves(tree)
        for name in found.keys() - kept.get(scope, found).keys():
            for node, around in found[name]:
                if _is_removable(source, node, around, is_public=False):
                    yield _removed(source, node, around, [name])


def _bindings(scope: ast.AST) -> dict[str, list[tuple[ast.AST, ast.AST]]]:
    """Returns what binds each name of a scope, with the node around it."""
    found: dict[str, list[tuple[ast.AST, ast.AST]]] = {}
    if not isinstance(scope, ast.Module):
        for part in ast.walk(scope.args):  # type: ignore[attr-defined]
            if isinstance(part, ast.arg):
                found.setdefault(part.arg, []).append((part, scope))
    for around in (scope, *_inside(scope, (*_FUNCTIONS, ast.ClassDef, ast.Lambda))):
        if around is not scope and isinstance(around, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        for node in ast.iter_child_nodes(around):
            for name in _bound_by(node):
                found.setdefault(name, []).append((node, around))
    return found


def _bound_by(node: ast.AST) -> list[str]:
    """Returns the names that a node binds; a target of an assignment is counted as that."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [_bound_as(alias) for alias in node.names]
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return node.names
    if isinstance(node, ast.ExceptHandler):
        return [node.name] if node.name else []
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return [node.targets[0].id] if isinstance(node.targets[0], ast.Name) else []
    is_target = isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del))
    return [node.id] if is_target else []  # type: ignore[attr-defined]


def _bound_as(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _is_removable(source: Source, node: ast.AST, around: ast.AST, is_public: bool) -> bool:
    if isinstance(node, ast.Name):
        # The target of an assignment that is counted itself.
        return isinstance(around, ast.Assign) and around.targets == [node]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        is_package = os.path.basename(source.path) == "__init__.py"
        lines = source.lines[node.lineno - 1 : node.end_lineno]
        # A comment would be lost, and a linter finds it.
        return not is_package and not any("#" in line for line in lines)
    if is_public or not import_edits.stands_alone(source, node):
        return False
    blocks = [part for part in vars(around).values() if isinstance(part, list)]
    if any(block == [node] for block in blocks):
        return False
    if isinstance(node, _FUNCTIONS):
        return not node.decorator_list
    return isinstance(node, ast.Assign) and _is_pure(node.value)


def _is_pure(node: ast.expr) -> bool:
    for part in [node] if isinstance(node, ast.Lambda) else ast.walk(node):
        if isinstance(part, ast.Call):
            name = ast.unparse(part.func).rpartition(".")[2]
            if name not in _PURE_CALLS:
                return False
        elif not isinstance(part, _PURE):
            return False
    return True


def _removed(source: Source, node: ast.AST, around: ast.AST, names: list[str]) -> list[Edit]:
    if isinstance(node, ast.Name):
        return []
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        gone = [each for each in node.names if _bound_as(each) in names]
        return import_edits.without(source, node, gone, around)
    first, last = node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]
    first = _with_comments(source, first)
    above = source.line(first - 1).rstrip()
    while (
        (not above or above.endswith(":"))
        and last < len(source.lines)
        and not source.line(last + 1).strip()
    ):
        last += 1
    return [import_edits.without_lines(source, first, last)]


def _with_comments(source: Source, line: int) -> int:
    """Returns where the comments above a line begin that are about its values, as sentences."""
    first = at = line
    is_about = False
    while source.line(at - 1).lstrip().startswith("#"):
        is_end = source.line(at - 1).rstrip().endswith((".", ":", "!", "?"))
        if is_end and at < line:
            # A sentence begins here.
            if not is_about:
                return first
            first, is_about = at, False
        at -= 1
        is_about |= _ABOUT_DEVICES.match(source.line(at)) is not None
    return at if is_about else first
