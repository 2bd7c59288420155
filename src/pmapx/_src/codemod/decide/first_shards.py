"""Where a program takes the first shard of what is stacked: ``x[0]``, or a ``tree_map`` of it."""

from __future__ import annotations

import ast

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Confidence
from pmapx._src.codemod.decide.copies import UNREPLICATE, names_called, takes_first
from pmapx._src.codemod.text import call_tokens


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


def chooses_item(module: Module, node: ast.Subscript) -> bool:
    """Tells whether ``state[0]`` is an item of a tuple: something is read of it that a shard lacks.

    ``state[0]["w"]``, ``state[0].count``, ``state[0][1].count`` and ``unreplicate(state[0])``.
    """
    above = module.parent(node)
    if isinstance(above, ast.Subscript) and isinstance(module.parent(above), ast.Attribute):
        # An item of an array would be an array, too.
        is_number = isinstance(above.slice, ast.Constant) and type(above.slice.value) is int
        above = module.parent(above) if is_number else above
    if isinstance(above, ast.Attribute):
        return above.attr not in known_names.ARRAY_ATTRIBUTES
    if isinstance(above, ast.Subscript):
        return isinstance(above.slice, ast.Constant) and isinstance(above.slice.value, str)
    if not isinstance(above, ast.Call) or node not in above.args:
        return False
    names = names_called(module, above)
    is_first = bool(names) and names <= UNREPLICATE
    return is_first or (bool(names) and names <= known_names.TREE_MAP and takes_first(above))


def _takes_first(module: Module, node: ast.Subscript | ast.Call) -> bool:
    """Returns whether this is ``x[0]`` or ``tree_map(lambda x: x[0], x)``."""
    if isinstance(node, ast.Subscript):
        index = node.slice
        return isinstance(index, ast.Constant) and index.value == 0 and type(index.value) is int
    call = module.facts.calls.get(node)
    is_tree_map = call is not None and call.names <= known_names.TREE_MAP
    return is_tree_map and takes_first(node, only=0) and not isinstance(node.args[1], ast.Starred)
