"""Expressions that are the number of devices, whichever way a program comes to them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from pmapx._src.analysis import known_names
from pmapx._src.analysis.definitions import Definition
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import defaults

if TYPE_CHECKING:
    from pmapx._src.codemod.merged.batch_flow import BatchFlow

MOST_STEPS = 8


def is_count(flow: BatchFlow, module: Module, node: ast.expr, steps: int = 0) -> bool:
    """Returns whether an expression is the number of devices on every path to it."""
    if steps > MOST_STEPS:
        return False
    if isinstance(node, ast.IfExp):
        return all(is_count(flow, module, part, steps + 1) for part in (node.body, node.orelse))
    found = module.facts.results.get(node, frozenset())
    is_result = bool(found) and found <= known_names.DEVICE_COUNTS
    if isinstance(node, ast.Name):
        bindings = list(flow.definitions_of(module, node))
        # What an imported name holds was looked at when it was read.
        return bool(bindings) and all(
            is_result if isinstance(each.node, ast.alias) else _is_bound(flow, each, steps + 1)
            for each in bindings
        )
    if isinstance(node, ast.Attribute):
        setting = flow.setting(module, node)
        return is_result and all(_is_bound(flow, each, steps + 1) for each in setting)
    return is_result and isinstance(node, ast.Call)


def _is_bound(flow: BatchFlow, definition: Definition, steps: int) -> bool:
    """Returns whether a binding is to the number of devices."""
    node, module = definition.node, definition.module
    if isinstance(node, ast.arg):
        function = module.parent(module.parent(node))
        sent = [*flow.passed.get((function, node.arg), ()), *_default(module, function, node)]
        return bool(sent) and all(is_count(flow, home, arg, steps + 1) for home, arg in sent)
    is_plain = definition.source is not None and not definition.steps
    return is_plain and is_count(flow, module, definition.source, steps + 1)  # type: ignore[arg-type]


def _default(module: Module, function: ast.AST, node: ast.arg) -> list[tuple[Module, ast.expr]]:
    arguments = getattr(function, "args", None)
    held = defaults(arguments).get(node.arg) if isinstance(arguments, ast.arguments) else None
    return [] if held is None else [(module, held)]
