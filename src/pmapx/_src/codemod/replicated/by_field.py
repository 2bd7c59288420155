"""States of which some fields keep their axis: what is read of them, and what they get."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from pmapx._src.analysis.module import Module
from pmapx._src.codemod.replicated.groups import MIXED, OTHER, Abstract, Parts, Ref, has_other, refs

if TYPE_CHECKING:
    from pmapx._src.codemod.replicated.stacked_values import StackedValues

ALIKE = "it is used here whatever its fields are"


def part_of(
    values: StackedValues, whole: Ref, module: Module, node: ast.AST, name: str = ""
) -> Abstract:
    """Returns a part of a tree, which holds together with all others but stacked fields."""
    whole.element.is_taken_apart = True
    if not whole.is_field and name in values.stacked:
        whole.element.fields[name] = module.place(node)
        return OTHER
    if not name:
        alike(whole, module, node)
    return Ref(whole.element, is_part=bool(values.stacked))


def alike(held: Abstract, module: Module, node: ast.AST) -> None:
    """Notes a use of a state that is understood only if all of its fields are alike."""
    for ref in refs(held):
        if not ref.is_field:
            ref.element.unsplit.setdefault(module.place(node), ALIKE)


def replace(values: StackedValues, module: Module, node: ast.Call, base: Ref) -> None:
    """Joins a state with what some of its fields are replaced by, but for stacked ones."""
    base.element.methods.add(node.func.attr)  # type: ignore[attr-defined]
    for keyword in node.keywords:
        held = values.value(module, keyword.value)
        if keyword.arg in values.stacked:
            base.element.fields[str(keyword.arg)] = module.place(node)
            values.escape(held, module, keyword.value, "it goes into a field that is stacked")
            continue
        found = values.graph.joined([held], module.place(node))
        if found is not None:
            values.graph.join(base.element, found.element)
        elif has_other(held):
            base.element.reasons.setdefault(module.place(node), MIXED)


def as_passed(
    values: StackedValues,
    module: Module,
    given: dict[str | None, ast.expr],
    function: ast.FunctionDef,
    held: Abstract,
) -> Abstract:
    """Returns what a call gives: of a parameter that is returned as it is, what the call passes."""
    if type(held) is Parts:
        items = [as_passed(values, module, given, function, item) for item in held.items]
        return Parts(tuple(items))
    if not isinstance(held, Ref) or held.element.is_joined:
        return held
    arguments = function.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if held.element.key == (each,) and each.arg in given:
            return held if held.is_part else values.value(module, given[each.arg])
    return held
