"""Names of a mapped function's text that mean something else when a lambda around it is called."""

from __future__ import annotations

import ast

from pmapx._src.analysis.definitions import LOOPS
from pmapx._src.codemod.forms.use import Use


def is_bound_again(use: Use) -> bool:
    """Returns whether the function's text may mean another function once the site is passed.

    ``step = jax.pmap(step)`` is the commonest: in a lambda, ``step`` would be the map itself.
    """
    call = use.expression
    if not isinstance(call, ast.Call) or not call.args or use.site.kind == "decorator":
        return False
    function = call.args[0]
    inner = {part.arg for part in ast.walk(function) if isinstance(part, ast.arg)}
    # ``lambda x, k=k: k * x``: a default is read outside.
    inner -= {
        part.id
        for arguments in ast.walk(function)
        if isinstance(arguments, ast.arguments)
        for default in (*arguments.defaults, *filter(None, arguments.kw_defaults))
        for part in ast.walk(default)
        if isinstance(part, ast.Name)
    }
    texts = {
        ast.unparse(part)
        for part in ast.walk(function)
        if isinstance(part, (ast.Name, ast.Attribute))
    } - inner
    around = use.module.functions_around(use.node)
    block = around[0] if around else use.module.source.tree
    stored: dict[str, list[int]] = {}
    for part in ast.walk(block):
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Store):
            stored.setdefault(ast.unparse(part), []).append(part.lineno)
        elif isinstance(part, (ast.FunctionDef, ast.ClassDef)) and part is not block:
            stored.setdefault(part.name, []).append(part.lineno)
    here = use.site.place.line
    if any(line >= here for text in texts for line in stored.get(text, ())):
        return True
    if isinstance(function, ast.Attribute) and _is_set_elsewhere(use, function.attr, block):
        return True
    node: ast.AST = use.node
    while node is not block and not isinstance(node, ast.Module):
        if isinstance(node, LOOPS):
            first, last = node.lineno, node.end_lineno or 0
            if any(first <= line <= last for text in texts for line in stored.get(text, ())):
                return True
        node = use.module.parent(node)
    return False


def _is_set_elsewhere(use: Use, name: str, block: ast.AST) -> bool:
    """Returns whether code of the file outside of a block assigns an attribute."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.ctx, ast.Store)
        and block not in (*use.module.functions_around(node), use.module.source.tree)
        for node in use.module.nodes
    )
