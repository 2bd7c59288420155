"""State of a multi-process program that is one global array on all devices, and stays so.

In ``state, metrics = step(state, batch)``, with ``None`` for the axes of the state, the result is
global and replicated. Every process can read it, and the next call takes it as it is.
"""

from __future__ import annotations

import ast

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Mapped, constant
from pmapx._src.codemod.decide.assigned_values import block_of

# What stands for a replicated placement until the mesh has a name.
REPLICATED = "on_every_device"


def carried(module: Module, call: ast.Call) -> frozenset[int]:
    """Returns which results of a map's call are replicated state, if all that are replicated are.

    They have the name of a replicated argument.
    """
    axes = _axes(module, call)
    statement = module.parent(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if axes is None or len(targets) != 1 or not isinstance(targets[0], ast.Tuple):
        return frozenset()
    taken, given = axes
    results = targets[0].elts
    if not isinstance(given, tuple) or len(given) != len(results):
        return frozenset()
    state = {
        ast.unparse(arg)
        for position, arg in enumerate(call.args)
        if (taken[position : position + 1] == (None,) if isinstance(taken, tuple) else False)
    }
    replicated = [i for i, axis in enumerate(given) if axis is None]
    is_state = all(ast.unparse(results[i]) in state for i in replicated)
    return frozenset(replicated) if is_state else frozenset()


def _axes(module: Module, call: ast.Call) -> tuple[object, object] | None:
    """Returns the axes of the map that a call calls, if all that it may call have the same."""
    callees = module.facts.callees.get(call, frozenset())
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        return None
    maps = [fact for fact in callees if isinstance(fact, Mapped)]
    axes = [(constant(fact.in_axes), constant(fact.out_axes)) for fact in maps]
    is_one = bool(axes) and len(maps) == len(callees) and all(each == axes[0] for each in axes)
    return axes[0] if is_one else None


def is_global(module: Module, node: ast.expr) -> bool:
    """Returns whether a name holds only what was placed on all devices, or such a result."""
    block = block_of(module, node)
    if not isinstance(node, ast.Name) or isinstance(block, (ast.Lambda, ast.Module)):
        return False
    parts = list(ast.walk(block))
    if any(isinstance(p, (ast.Global, ast.Nonlocal)) and node.id in p.names for p in parts):
        return False
    last = _assigned_before(module, node, block)
    stored = [p for p in parts if isinstance(p, ast.Name) and p.id == node.id and not _is_read(p)]
    # An assignment that every way to the use goes through hides those above it.
    return last is not None and all(
        _is_given_global(module, each) for each in stored if each.lineno >= last.lineno
    )


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _assigned_before(module: Module, node: ast.Name, block: ast.AST) -> ast.Assign | None:
    """Returns the last assignment of a name that each way to a use goes through."""
    inner: ast.AST = node
    while inner is not block:
        above = module.parent(inner)
        lists = [held for held in vars(above).values() if isinstance(held, list) and inner in held]
        for statement in reversed([s for held in lists for s in held[: held.index(inner)]]):
            if isinstance(statement, ast.Assign):
                parts = [part for target in statement.targets for part in ast.walk(target)]
                if any(isinstance(p, ast.Name) and p.id == node.id for p in parts):
                    return statement
        inner = above
    return None


def _is_given_global(module: Module, target: ast.Name) -> bool:
    above = module.parent(target)
    statement = module.parent(above) if isinstance(above, ast.Tuple) else above
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return False
    if isinstance(above, ast.Tuple):
        return above.elts.index(target) in carried(module, statement.value)
    return ast.unparse(statement.value.func) == REPLICATED
