"""Where ``x[0]`` of a pmapped function's result goes straight to the host: ``first_row(x)``.

``x[0]`` of a sharded array is a collective. ``first_row`` reads one device's shard, which is the
same to ``float``, ``print`` or NumPy, but not to a function that takes it together with arrays on
all devices; so that only the former is changed.
"""

from __future__ import annotations

import ast

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Confidence
from pmapx._src.codemod.decide.copies import takes_first
from pmapx._src.codemod.text import call_tokens
from pmapx._src.codemod.text.editor import Editor

_TO_HOST = frozenset(
    {
        "builtins.float", "builtins.int", "builtins.bool", "builtins.print", "builtins.str",
        "builtins.repr", "builtins.format", "builtins.round", "numpy.asarray", "numpy.array",
        "numpy.save", "jax.device_get",
    }
)  # fmt: skip
_METHODS_TO_HOST = ("item", "tolist")


def first_shards(module: Module) -> list[ast.Subscript | ast.Call]:
    """Returns the expressions to change: ``x[0]``, or a ``tree_map`` of it."""
    return [
        node
        for node in taken_first(module)
        if module.facts.indexings[node].stacked.from_map
        and _goes_to_host(module, node)
        and not call_tokens.comments(module.source, module.place(node))
    ]


def write(editor: Editor, node: ast.Subscript | ast.Call) -> None:
    base = node.value if isinstance(node, ast.Subscript) else node.args[1]
    place = call_tokens.parenthesized(editor.source, base, node)
    editor.replace(editor.source.place(node), f"first_row({editor.text(place)})")


def taken_first(module: Module) -> list[ast.Subscript | ast.Call]:
    """Returns where the first entry of what is stacked for sure is taken, outside traced code."""
    traced = module.project.jitted | module.project.mapped.keys()
    return [
        node
        for node, indexing in module.facts.indexings.items()
        if indexing.stacked.confidence == Confidence.HIGH
        and isinstance(node, (ast.Subscript, ast.Call))
        and _takes_first(module, node)
        and traced.isdisjoint(module.functions_around(node))
        and call_tokens.is_at_its_place(module.source, node)
    ]


def _takes_first(module: Module, node: ast.Subscript | ast.Call) -> bool:
    """Returns whether this is ``x[0]`` or ``tree_map(lambda x: x[0], x)``."""
    if isinstance(node, ast.Subscript):
        index = node.slice
        return isinstance(index, ast.Constant) and index.value == 0 and type(index.value) is int
    call = module.facts.calls.get(node)
    is_tree_map = call is not None and call.names <= known_names.TREE_MAP
    return is_tree_map and takes_first(node, only=0) and not isinstance(node.args[1], ast.Starred)


def _goes_to_host(module: Module, node: ast.AST) -> bool:
    parent = module.parent(node)
    if isinstance(parent, ast.FormattedValue):
        # Before Python 3.12, places within an f-string are not to be relied on.
        return False
    if isinstance(parent, ast.Attribute) and parent.attr in _METHODS_TO_HOST:
        above = module.parent(parent)
        return isinstance(above, ast.Call) and above.func is parent
    if not isinstance(parent, ast.Call) or node not in parent.args:
        return False
    call = module.facts.calls.get(parent)
    return call is not None and bool(call.names) and call.names <= _TO_HOST
