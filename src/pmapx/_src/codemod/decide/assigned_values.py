"""What the text of a block assigns to a name, in whatever order: for questions that fail safely."""

from __future__ import annotations

import ast
from collections.abc import Iterator

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


def assigned_values(block: ast.AST, name: str) -> Iterator[ast.expr]:
    """Gives the values that assignments in a block give to a name; of a tuple, its part or all."""
    for node in ast.walk(block):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            assert isinstance(node, ast.Assign)
            if isinstance(target, ast.Name) and target.id == name:
                yield node.value
            elif isinstance(target, ast.Tuple):
                names = [getattr(part, "id", "") for part in target.elts]
                value = node.value
                is_same = isinstance(value, ast.Tuple) and len(value.elts) == len(names)
                if name in names:
                    yield value.elts[names.index(name)] if is_same else value  # type: ignore[attr-defined]


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
