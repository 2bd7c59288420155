"""What the text of a block assigns to a name, in whatever order: for questions that fail safely."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pmapx._src.analysis.module import Module

# What runs its body more than once.
LOOPS = (
    ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip


def block_of(module: Module, node: ast.AST) -> ast.AST:
    """Returns the innermost ``def`` around a node, or the file."""
    around = [each for each in module.functions_around(node) if not isinstance(each, ast.Lambda)]
    return around[0] if around else module.source.tree


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
