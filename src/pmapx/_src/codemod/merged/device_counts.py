"""Expressions that are the number of devices, whichever way a program comes to them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from pmapx._src.analysis import known_names
from pmapx._src.analysis.definitions import Definition
from pmapx._src.analysis.module import Module

if TYPE_CHECKING:
    from pmapx._src.codemod.merged.batch_flow import BatchFlow

MOST_STEPS = 8


def is_count(flow: BatchFlow, module: Module, node: ast.expr, steps: int = 0) -> bool:
    """Tells whether an expression is the number of devices on every path to it."""
    if steps > MOST_STEPS:
        return False
    found = module.facts.results.get(node, frozenset())
    if not found or not found <= known_names.DEVICE_COUNTS:
        return False
    if isinstance(node, ast.IfExp):
        return all(is_count(flow, module, part, steps + 1) for part in (node.body, node.orelse))
    if isinstance(node, ast.Name):
        bindings = flow.definitions_of(module, node)
        return all(_is_bound_to_count(flow, each, steps + 1) for each in bindings)
    if isinstance(node, ast.Attribute):
        return all(_is_bound_to_count(flow, e, steps + 1) for e in flow.setting(module, node))
    return isinstance(node, ast.Call)


def _is_bound_to_count(flow: BatchFlow, definition: Definition, steps: int) -> bool:
    node, module = definition.node, definition.module
    if isinstance(node, ast.arg):
        function = module.parent(module.parent(node))
        sent = [*flow.passed.get((function, node.arg), ()), *_default(module, function, node)]
        return bool(sent) and all(is_count(flow, home, arg, steps + 1) for home, arg in sent)
    if definition.source is None:
        # An import: what the name holds there was looked at when it was read.
        return isinstance(node, ast.alias)
    return not definition.steps and is_count(flow, module, definition.source, steps + 1)


def _default(module: Module, function: ast.AST, node: ast.arg) -> list[tuple[Module, ast.expr]]:
    arguments = getattr(function, "args", None)
    if not isinstance(arguments, ast.arguments):
        return []
    names = [*arguments.posonlyargs, *arguments.args]
    by_position = zip(names[len(names) - len(arguments.defaults) :], arguments.defaults)
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults)
    pairs = [*by_position, *by_name]
    return [(module, held) for each, held in pairs if each is node and held is not None]
