"""What must be copied: arrays that a tree has twice, and shards that outlive their state.

The memory of an array can be donated only once.

``jax.device_put`` to a replicated sharding keeps an array's memory on the device where it is, where
``device_put_replicated`` copied: ``State(params=params, ema=params)`` has the same memory twice.
"""

from __future__ import annotations

import ast

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Bound, Function, Named
from pmapx._src.codemod.decide import copies
from pmapx._src.codemod.decide.assigned_values import assigned_values, block_of, is_used_after

DEEPEST = 4
# Functions of JAX that take what a process has, and not a global array.
_COMPUTING = (
    "jax.experimental.multihost_utils.", "jax.device_put", "jax.numpy.", "jax.random.", "jax.nn.",
    "jax.lax.",
)  # fmt: skip
_READING = frozenset({"float", "int", "bool", "str", "repr", "print", "len", "format"})
_READING_OUTSIDE = (
    "jax.device_get", "numpy.", "pickle.dump", "flax.serialization.",
    "flax.training.checkpoints.save_checkpoint", "jax.numpy.zeros_like", "jax.numpy.ones_like",
)  # fmt: skip


def may_have_twins(module: Module, node: ast.expr, depth: int = 0) -> bool:
    """Returns whether a tree may have an array twice, or comes from where that cannot be seen."""
    if depth > DEEPEST:
        return True
    if isinstance(node, ast.Name):
        values = _assigned(module, node)
        return not values or any(may_have_twins(module, value, depth + 1) for value in values)
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return True
    if _holds_twice(module, node):
        return True
    return isinstance(node, ast.Call) and any(
        may_have_twins(function.module, value, depth + 1)
        for function in _called(module, node)
        for value in _returned(function)
    )


def _assigned(module: Module, node: ast.Name) -> list[ast.expr]:
    """Returns what is assigned to a name where it is used, or in the file."""
    for block in (block_of(module, node), module.source.tree):
        # What is put on the devices takes the name of what it is made of.
        found = [v for v in assigned_values(block, node.id) if node not in ast.walk(v)]
        if found:
            return found
    return []


def _called(module: Module, call: ast.Call) -> list[Function]:
    callees = module.facts.callees.get(call, frozenset())
    found = [fact.function if isinstance(fact, Bound) else fact for fact in callees]
    return [fact for fact in found if isinstance(fact, Function)]


def _returned(function: Function) -> list[ast.expr]:
    node = function.node
    if isinstance(node, ast.Lambda):
        return [node.body]
    returns = [part for part in ast.walk(node) if isinstance(part, ast.Return)]
    return [each.value for each in returns if each.value is not None]


def _holds_twice(module: Module, tree: ast.expr) -> bool:
    """Returns whether an expression puts the same value into a tree more than once."""
    same = {
        part.targets[0].id: part.value.id
        for part in ast.walk(block_of(module, tree))
        if isinstance(part, ast.Assign)
        and isinstance(part.targets[0], ast.Name)
        and isinstance(part.value, ast.Name)
    }
    held = []
    for parent in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(parent, ast.Call):
            parts = [*parent.args, *(keyword.value for keyword in parent.keywords)]
        elif isinstance(parent, ast.Dict):
            parts = parent.values
        elif isinstance(parent, (ast.Tuple, ast.List)):
            parts = parent.elts
        held += [
            same.get(ast.unparse(part), ast.unparse(part))
            for part in parts
            if isinstance(part, (ast.Name, ast.Attribute)) and not _is_imported(module, part)
        ]
    return len(held) != len(set(held))


def _is_imported(module: Module, node: ast.expr) -> bool:
    """Tells whether a value is another module's, as ``np.float32`` is, and no array."""
    known = module.env.find(ast.unparse(node).partition(".")[0])
    return bool(known) and all(isinstance(fact, Named) for fact in known or ())


def is_kept(module: Module, node: ast.AST, state: ast.expr) -> bool:
    """Tells whether a shard may be kept longer than the state that it was taken of."""
    is_own = isinstance(state, ast.Name) and _is_only_result(block_of(module, node), state.id)
    if is_own and not is_used_after(module, node, state.id):  # type: ignore[attr-defined]
        return False
    parent = module.parent(node)
    while isinstance(parent, (ast.Attribute, ast.Subscript)):
        node, parent = parent, module.parent(parent)
    if isinstance(parent, ast.FormattedValue | ast.Compare | ast.BinOp | ast.UnaryOp):
        return False
    while isinstance(parent, (ast.Tuple, ast.List, ast.Dict, ast.keyword)):
        node, parent = parent, module.parent(parent)
    if isinstance(parent, ast.Call) and parent.func is not node:
        if isinstance(parent.func, ast.Name) and parent.func.id in _READING:
            return False
        names = _called_on(module, parent)
        is_later = any(each.arg == "async_manager" for each in parent.keywords)
        return is_later or not names or not all(n.startswith(_READING_OUTSIDE) for n in names)
    is_method = isinstance(parent, ast.Call) and parent.func is node
    return not is_method


def is_computed_with(module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Tells whether JAX computes with a shard, beside what a process has alone or for itself."""
    node = with_parts(module, node)
    parent = module.parent(node)
    if isinstance(parent, (ast.BinOp, ast.Compare)):
        parts = [part for part in ast.iter_child_nodes(parent) if isinstance(part, ast.expr)]
        return not any(isinstance(part, ast.Constant) for part in parts)
    if isinstance(parent, ast.Assign) and depth < DEEPEST:
        names = {target.id for target in parent.targets if isinstance(target, ast.Name)}
        uses = [part for part in ast.walk(block_of(module, node)) if isinstance(part, ast.Name)]
        uses = [part for part in uses if part.id in names and isinstance(part.ctx, ast.Load)]
        return any(is_computed_with(module, use, depth + 1) for use in uses)
    while isinstance(parent, (ast.Tuple, ast.List, ast.Dict, ast.keyword, ast.Starred)):
        node, parent = parent, module.parent(parent)
    if not isinstance(parent, ast.Call) or parent.func is node:
        return False
    if node in parent.args[1:] and isinstance(parent.args[0], ast.Lambda):
        return _is_tree_map(module, parent)
    return any(name.startswith(_COMPUTING) for name in _called_on(module, parent))


def with_parts(module: Module, node: ast.AST) -> ast.AST:
    """Returns a value with the attributes and indices that are taken of it: ``x.params[0]``."""
    parent = module.parent(node)
    while isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node:
        node, parent = parent, module.parent(parent)
    return node


def mapped_function(module: Module, call: ast.AST | None) -> ast.expr | None:
    """Returns the function of another library that a call maps over a tree, if it does."""
    if not isinstance(call, ast.Call) or len(call.args) != 2 or call.keywords:
        return None
    is_outside = call.args[0] in module.facts.references
    return call.args[0] if is_outside and _is_tree_map(module, call) else None


def _is_tree_map(module: Module, call: ast.Call) -> bool:
    called = copies.names_called(module, call)
    return bool(called) and called <= known_names.TREE_MAP


def _called_on(module: Module, call: ast.Call) -> frozenset[str]:
    """Returns the outside functions that a call gives its arguments to, or their leaves."""
    mapped = mapped_function(module, call)
    if mapped is not None:
        return frozenset({module.facts.references[mapped].name})
    return copies.names_called(module, call)


def _is_only_result(block: ast.AST, name: str) -> bool:
    """Tells whether a name has only what calls return, and no other name has it."""
    parts = [part for part in ast.walk(block) if isinstance(part, (ast.Name, ast.Assign))]
    assigned = [part.value for part in parts if isinstance(part, ast.Assign)]
    if any(isinstance(value, ast.Name) and value.id == name for value in assigned):
        return False
    bound = [
        part
        for part in parts
        if isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Store)
    ]
    values = list(assigned_values(block, name))
    is_known = len(bound) == len(values) > 0
    return is_known and all(isinstance(value, ast.Call) for value in values)
