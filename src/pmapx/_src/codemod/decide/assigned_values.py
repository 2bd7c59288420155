"""What the text of a block assigns to a name, in whatever order: for questions that fail safely."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence

from pmapx._src.analysis.definitions import LOOPS
from pmapx._src.analysis.module import Module


def block_of(module: Module, node: ast.AST) -> ast.AST:
    """Returns the innermost ``def`` around a node, or the file."""
    around = [each for each in module.functions_around(node) if not isinstance(each, ast.Lambda)]
    return around[0] if around else module.source.tree


def is_in_loop(module: Module, node: ast.AST) -> bool:
    """Tells whether the block around a node may run it more than once."""
    block, above = block_of(module, node), module.parent(node)
    while above is not block:
        if isinstance(above, LOOPS):
            return True
        above = module.parent(above)
    return False


def assigned_values(block: ast.AST, name: str) -> Sequence[ast.expr]:
    """Returns the values that assignments in a block give to a name."""
    return assignments(block).get(name, ())


@functools.lru_cache(maxsize=64)
def assignments(block: ast.AST) -> Mapping[str, Sequence[ast.expr]]:
    """Returns the values that assignments in a block give to names; of a tuple, its part or all."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(block):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            assert isinstance(node, ast.Assign)
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(node.value)
            elif isinstance(target, ast.Tuple):
                parts = node.value.elts if isinstance(node.value, ast.Tuple) else []
                is_same = len(parts) == len(target.elts)
                values = parts if is_same else [node.value] * len(target.elts)
                # The first of a name, as ``_, _ = f()`` has several.
                named: dict[str, ast.expr] = {}
                for part, value in zip(target.elts, values, strict=True):
                    if isinstance(part, ast.Name):
                        named.setdefault(part.id, value)
                for name, value in named.items():
                    found.setdefault(name, []).append(value)
    return found


def is_changed_in_place(module: Module, call: ast.Call) -> bool:
    """Tells whether the array that a call makes may be changed through another name for it.

    ``row = w[1]; row += 1`` changes ``w`` if it is an array of NumPy, as ``np.add(w, 1, out=w)``.
    """
    targets = getattr(module.statement(call), "targets", ())
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    parts = list(ast.walk(block_of(module, call))) if names else []
    views: set[str] = set()
    for part in parts:
        if isinstance(part, ast.Call):
            given = [keyword.value for keyword in part.keywords if keyword.arg == "out"]
            given += part.args[:1] if getattr(part.func, "attr", "") == "copyto" else []
            if any(isinstance(each, ast.Name) and each.id in names for each in given):
                return True
        elif isinstance(part, ast.Assign) and isinstance(part.value, ast.Subscript):
            if isinstance(part.value.value, ast.Name) and part.value.value.id in names:
                views |= {target.id for target in part.targets if isinstance(target, ast.Name)}
        elif isinstance(part, ast.For):
            read = {n.id for n in ast.walk(part.iter) if isinstance(n, ast.Name)}
            given_names = {n.id for n in ast.walk(part.target) if isinstance(n, ast.Name)}
            views |= given_names if read & names else set()
    changed = [part.target for part in parts if isinstance(part, ast.AugAssign)]
    stored = (ast.Store, ast.Del)
    changed += [p for p in parts if isinstance(p, ast.Subscript) and isinstance(p.ctx, stored)]
    roots = [each.value if isinstance(each, ast.Subscript) else each for each in changed]
    return any(isinstance(root, ast.Name) and root.id in views for root in roots)


def is_used_after(module: Module, node: ast.AST, name: str) -> bool:
    """Tells whether a block may use a name after the statement of a node.

    In a loop and in an inner function it may, until it is assigned again.
    """
    block, statement = block_of(module, node), module.statement(node)
    end, last = statement.end_lineno or 0, 1 << 30
    above: ast.AST = statement
    while above is not block and not isinstance(above, ast.Module):
        around = module.parent(above)
        if isinstance(around, LOOPS):
            return True
        for suite in ("body", "orelse", "finalbody"):
            found = getattr(around, suite, [])
            later = found[found.index(above) + 1 :] if above in found else []
            ends = [each.end_lineno for each in later if name in _targets(each)]
            last = min([last, *ends])
        above = around
    inner = [
        part
        for function in ast.walk(block)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        and function is not block
        for part in ast.walk(function)
    ]
    later = [part for part in ast.walk(block) if end < getattr(part, "lineno", 0) <= last]
    return any(
        isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Load)
        for part in [*inner, *later]
    )


def _targets(statement: ast.stmt) -> set[str]:
    """Returns the names that an assignment binds."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    parts = [part for target in targets for part in (target, *getattr(target, "elts", ()))]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def conditions(module: Module, node: ast.AST, use: ast.AST | None = None) -> Iterator[ast.expr]:
    """Gives the conditions under which a node of a function is run, but the use of it is not."""
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)
    line = getattr(use, "lineno", 0)
    before, above = node, module.parent(node)
    while not isinstance(above, scopes):
        if isinstance(above, (ast.If, ast.While)) and before is not above.test:
            branch = above.body if before in above.body else above.orelse
            if not branch[0].lineno <= line <= (branch[-1].end_lineno or 0):
                yield above.test
        elif isinstance(above, ast.Match):
            yield above.subject
        elif isinstance(above, (ast.For, ast.AsyncFor)):
            # It may not be run in each round.
            yield from _ends(above)
        before, above = above, module.parent(above)


def _ends(loop: ast.For | ast.AsyncFor) -> Iterator[ast.expr]:
    """Gives the conditions under which a loop goes on or ends early."""
    for part in ast.walk(loop):
        if isinstance(part, ast.If) and any(
            isinstance(each, (ast.Break, ast.Continue)) for each in (*part.body, *part.orelse)
        ):
            yield part.test
