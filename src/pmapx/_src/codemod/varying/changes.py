"""What a statement changes in place, the conditions under which it runs, and what is returned."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Named

_CHANGING = frozenset(
    {
        "append", "extend", "insert", "add", "update", "setdefault", "fill", "pop", "remove",
        "clear", "sort",
    }
)  # fmt: skip
# What these change is their first argument.
_CHANGING_FIRST = frozenset({"copyto", "shuffle", "fill_diagonal"})


def changing(node: ast.AST) -> Iterator[tuple[ast.AST, list[ast.expr]]]:
    """Gives what a statement changes, and by what: ``x[i] = y``, ``x += y``, ``x.append(y)``."""
    for changed, values in _changing(node):
        match changed:
            case ast.Call(func=ast.Name(id="vars"), args=[of]):
                yield of, values
            case ast.Attribute(attr="__dict__", value=of):
                yield of, values
            case _:
                yield changed, values


def _changing(node: ast.AST) -> Iterator[tuple[ast.AST, list[ast.expr]]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Subscript):
                    yield target.value, [value]
        case ast.AugAssign(target=ast.Subscript(value=target), value=value):
            yield target, [value]
        case ast.AugAssign(target=ast.Name() as target, value=value):
            yield target, [value]
        case ast.Expr(value=ast.Call(func=ast.Name(id="setattr"), args=[_, name, value])):
            yield name, [value]
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name, value=target)) as call):
            values = [call, *call.args, *(keyword.value for keyword in call.keywords)]
            if name in _CHANGING:
                yield target, values
            elif name in _CHANGING_FIRST and call.args:
                yield call.args[0], values
        case ast.Delete(targets=targets):
            for target in targets:
                if isinstance(target, ast.Subscript):
                    yield target.value, [target.slice]


def name_of(module: Module, node: ast.AST) -> str | None:
    """Returns what changes of an attribute are found by: its name, with that of a library's.

    ``wandb.config.update(...)`` does not change ``state.config``.
    """
    if not isinstance(node, ast.Attribute):
        written = getattr(node, "value", None)
        return written if isinstance(written, str) else None
    known = module.env.find(node.value.id) if isinstance(node.value, ast.Name) else None
    is_library = bool(known) and all(isinstance(fact, Named) for fact in known or ())
    return ast.unparse(node) if is_library else node.attr


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
            # It may not be run in each round, or not as often.
            yield from _ends(above)
            if isinstance(above.iter, ast.Call) and "process_index" in ast.unparse(above.iter):
                yield from above.iter.args
        before, above = above, module.parent(above)


def _ends(loop: ast.For | ast.AsyncFor) -> Iterator[ast.expr]:
    """Gives the conditions under which a loop goes on or ends early."""
    for part in ast.walk(loop):
        if isinstance(part, ast.If) and any(
            isinstance(each, (ast.Break, ast.Continue)) for each in (*part.body, *part.orelse)
        ):
            yield part.test


def returned(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[tuple[ast.Return | ast.Yield | ast.YieldFrom, ast.expr]]:
    """Gives what a function returns or yields, with where it does so."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        part = waiting.pop()
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(part, (ast.Return, ast.Yield, ast.YieldFrom)) and part.value is not None:
            yield part, part.value
        waiting += ast.iter_child_nodes(part)
