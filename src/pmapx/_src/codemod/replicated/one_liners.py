"""Small functions of the program that stand for a call of JAX's: ``first``, ``replicate``.

A program uses them for what becomes replicated and for what stays stacked, so their calls change,
one by one, and they themselves do not.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Sequence

from pmapx._src.analysis import known_names, syntax
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Function
from pmapx._src.codemod.decide import copies
from pmapx._src.codemod.replicated.groups import Change


@dataclasses.dataclass(frozen=True, slots=True)
class OneLiner:
    """What a call of the function does to its argument: ``first`` or ``make``.

    ``around`` is what it does with the first shard, such as ``jax.device_get``.
    """

    kind: str
    argument: ast.expr
    devices: ast.expr | None = None
    around: str = ""


def one_liner(module: Module, call: ast.Call, function: Function) -> OneLiner | None:
    """Returns what a call of such a function stands for, None if it is none."""
    definition = function.node
    if isinstance(definition, ast.AsyncFunctionDef):
        return None
    if isinstance(definition, ast.FunctionDef) and definition.decorator_list:
        return None
    arguments = definition.args
    others = [*arguments.posonlyargs, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    is_plain = len(arguments.args) == len(call.args) == 1 and not any(others) and not call.keywords
    result = syntax.result(definition)
    is_plain = is_plain and not isinstance(call.args[0], ast.Starred)
    if not is_plain or not isinstance(result, ast.Call):
        return None
    return _meaning(module, call.args[0], function.module, result, arguments.args[0].arg)


def in_makers(changes: Sequence[Change], modules: Iterable[Module]) -> list[Change]:
    """Returns the changes with those of a maker's calls made in the maker, if all of them change.

    ``def restore(saved): return jax.device_put_replicated(saved, devices)`` stays what it is called
    for, unless something that stays stacked is made by it too.
    """
    changed = {change.node for change in changes}
    makers = {change.maker.node: change.maker for change in changes if change.maker is not None}
    several = list(modules)
    replaced = {node: f for node, f in makers.items() if _uses(f, several) <= changed}
    kept = [each for each in changes if each.maker is None or each.maker.node not in replaced]
    for function in replaced.values():
        result = syntax.result(function.node)
        assert isinstance(result, ast.Call)
        devices = [*result.args[1:], *(keyword.value for keyword in result.keywords)]
        given = devices[0] if devices else None
        kept.append(Change(function.module, "place", result, result.args[0], given))
    return kept


def _uses(function: Function, modules: Sequence[Module]) -> set[ast.AST]:
    """Returns the calls of a function, and whatever else has its name."""
    found: set[ast.AST] = set()
    above = function.module.parent(function.node)
    target = above.targets[0] if isinstance(above, ast.Assign) else None
    own = target.id if isinstance(target, ast.Name) else function.name
    for module in modules:
        called: dict[ast.AST, ast.AST] = {
            call.func: call
            for call, callees in module.facts.callees.items()
            if isinstance(call, ast.Call)
            and any(isinstance(f, Function) and f.node is function.node for f in callees)
        }
        for node in module.nodes:
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
            if (name == own or node in called) and node is not target:
                found.add(called.get(node, node))
    return found


def _meaning(
    module: Module, argument: ast.expr, home: Module, result: ast.Call, parameter: str
) -> OneLiner | None:
    called = copies.names_called(home, result)
    if called and called <= known_names.TREE_MAP and copies.takes_first(result):
        return OneLiner("first", argument) if _is(result.args[1], parameter) else None
    only = result.args[0] if len(result.args) == 1 and not result.keywords else None
    if called and called <= copies.UNREPLICATE and only is not None:
        return OneLiner("first", argument) if _is(only, parameter) else None
    if called == {"jax.device_get"} and isinstance(only, ast.Call) and home is module:
        inner = _meaning(module, argument, home, only, parameter)
        if inner is not None and inner.kind == "first" and not inner.around:
            text = home.text(result.func)
            return dataclasses.replace(inner, around=text)
        return None
    if called and called <= copies.MAKERS and result.args and _is(result.args[0], parameter):
        given = [*result.args[1:], *(keyword.value for keyword in result.keywords)]
        is_default = not given or (len(given) == 1 and _is_local_devices(home, given[0]))
        return OneLiner("make", argument) if is_default else None
    return None


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_local_devices(module: Module, node: ast.expr) -> bool:
    is_call = isinstance(node, ast.Call) and not node.args and not node.keywords
    return is_call and copies.names_called(module, node) == {"jax.local_devices"}
