"""What the text of a block assigns to a name, in whatever order: for questions that fail safely."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence

from pmapx._src.analysis.definitions import LOOPS
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import defaults


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


def may_be_none(module: Module, text: str, node: ast.AST) -> bool:
    """Tells whether a name or a field that is read at a node is set to None, or is so by default.

    ``devices = jax.devices()[:n] if is_small else None``; ``self.devices = devices`` is what the
    parameter may be.
    """
    name = text.rpartition(".")[2]
    values: list[ast.expr | None] = []
    if "." in text:
        for part in module.nodes:
            if isinstance(part, (ast.Assign, ast.AnnAssign)):
                targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                is_of_class = isinstance(module.parent(part), ast.ClassDef)
                found = {getattr(each, "id" if is_of_class else "attr", "") for each in targets}
                values += [part.value] if name in found else []
    else:
        for function in module.functions_around(node) or [module.source.tree]:
            known = defaults(function.args) if hasattr(function, "args") else {}
            values += [known.get(name), *assigned_values(function, name)]
    return any(_may_be_none(module, value) for value in values if value is not None)


def _may_be_none(module: Module, value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=None):
            return True
        case ast.IfExp(body=one, orelse=other):
            return _may_be_none(module, one) or _may_be_none(module, other)
        case ast.Name(id=name):
            known = (
                defaults(function.args).get(name)  # type: ignore[attr-defined]
                for function in module.functions_around(value)
            )
            return any(isinstance(each, ast.Constant) and each.value is None for each in known)
    return False


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
