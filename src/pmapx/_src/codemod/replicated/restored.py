"""Replicated arguments that come from where arrays are committed to one device.

``jax.pmap`` transferred what it took with ``in_axes=None`` to its devices. ``jax.jit`` refuses an
array that is committed to one of them, as checkpoint libraries restore it, beside others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Bound, Function, Mapped
from pmapx._src.codemod.decide import copies
from pmapx._src.codemod.replicated.groups import Change
from pmapx._src.codemod.replicated.maps import Map
from pmapx._src.codemod.replicated.stacked_flow import Flow

# Functions of the program that lead to a call that restores.
DEEPEST = 4


def changes(flow: Flow) -> list[Change]:
    """Returns what puts restored arguments on the mesh, once, where they are restored."""
    found: dict[ast.AST, Change] = {}
    for module in flow.modules:
        for call, callees in module.facts.callees.items():
            maps = [flow.maps.get(fact) for fact in callees if isinstance(fact, Mapped)]
            if not isinstance(call, ast.Call) or not maps or flow.is_traced(module, call):
                continue
            for each in maps:
                is_meant = each is not None and each.module is module and not each.obstacle
                if is_meant and not _has_devices(each):  # type: ignore[arg-type]
                    for change in _of_call(flow, module, call, each):  # type: ignore[arg-type]
                        found.setdefault(change.node, change)
    return list(found.values())


def _has_devices(each: Map) -> bool:
    return any(
        keyword.arg in ("devices", "backend") for keyword in getattr(each.node, "keywords", ())
    )


def _of_call(flow: Flow, module: Module, call: ast.Call, each: Map) -> Iterator[Change]:
    for index, arg in enumerate(call.args):
        if isinstance(arg, ast.Starred):
            return
        if each.in_axis(index) is not None or index in each.static or not isinstance(arg, ast.Name):
            continue
        for definition in flow.definitions_of(module, arg):
            source = definition.source
            if definition.module is not module or not isinstance(source, ast.Call):
                continue
            if _is_put(module, source) and not definition.steps:
                yield Change(module, "place", source, source.args[0])
            elif _is_restored(module, source):
                # Of several values that are restored at once, this one is put where it is passed.
                node = arg if definition.steps else source
                yield Change(module, "place", node, node)


def _is_put(module: Module, call: ast.Call) -> bool:
    is_plain = len(call.args) == 2 and not call.keywords
    return is_plain and copies.names_called(module, call) == {"jax.device_put"}


def _is_restored(module: Module, call: ast.Call, depth: int = 0) -> bool:
    """Returns whether a call restores a checkpoint, by its name or by what it returns."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if "restore" in name.lower():
        return True
    callees = module.facts.callees.get(call, frozenset())
    called = [fact.function if isinstance(fact, Bound) else fact for fact in callees]
    return depth < DEEPEST and any(
        isinstance(part, ast.Return)
        and isinstance(part.value, ast.Call)
        and _is_restored(fact.module, part.value, depth + 1)
        for fact in called
        if isinstance(fact, Function)
        for part in ast.walk(fact.node)
    )
