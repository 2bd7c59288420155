"""Calls that stack a copy of a tree for each device, and calls that take the first."""

from __future__ import annotations

import ast

from pmapx._src.analysis import known_names
from pmapx._src.analysis.interpreter.indexing import index_taken
from pmapx._src.analysis.module import Module

MAKERS = known_names.REPLICATE | {"jax.device_put_replicated"}
UNREPLICATE = known_names.UNREPLICATE - {"flax.training.common_utils.get_metrics"}
_STACKS = frozenset({"jax.numpy.stack", "numpy.stack", "jax.numpy.array", "numpy.array"})
_BROADCASTS = frozenset({"jax.numpy.broadcast_to", "numpy.broadcast_to"})


def takes_first(call: ast.Call, only: int | None = None) -> bool:
    """Tells whether a call is ``tree_map(lambda x: x[0], tree)``, for one index or for any."""
    if len(call.args) != 2 or call.keywords or not isinstance(call.args[0], ast.Lambda):
        return False
    index = index_taken(call.args[0])
    return index is not None and only in (None, index)


def copied(module: Module, call: ast.Call, called: frozenset[str]) -> ast.expr | None:
    """Returns what a call stacks copies of: ``jnp.stack([x] * n)``, alone or in a tree_map."""
    if called <= known_names.TREE_MAP and len(call.args) == 2 and not call.keywords:
        function = call.args[0]
        if isinstance(function, ast.Lambda) and isinstance(function.body, ast.Call):
            inner = names_called(module, function.body)
            of = _of(module, function.body, inner)
            parameters = function.args.args
            if isinstance(of, ast.Name) and len(parameters) == 1 and of.id == parameters[0].arg:
                return call.args[1]
        return None
    return _of(module, call, called)


def names_called(module: Module, call: ast.AST) -> frozenset[str]:
    """Returns the outside functions that a call may be of."""
    found = module.facts.calls.get(call)
    return found.names if found is not None else frozenset()


def _of(module: Module, call: ast.Call, called: frozenset[str]) -> ast.expr | None:
    if not called or call.keywords:
        return None
    if called <= _STACKS and len(call.args) == 1:
        return _repeated(module, call.args[0])
    if called <= _BROADCASTS and len(call.args) == 2:
        return _broadcast(module, call.args[0], call.args[1])
    return None


def _repeated(module: Module, node: ast.expr) -> ast.expr | None:
    """``[x] * n`` or ``[x for _ in range(n)]``, with n the number of devices."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for one, count in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.List) and len(one.elts) == 1 and _is_count(module, count):
                return one.elts[0]
    if isinstance(node, ast.ListComp) and len(node.generators) == 1:
        generator = node.generators[0]
        is_counted = (
            isinstance(generator.iter, ast.Call)
            and len(generator.iter.args) == 1
            and _is_count(module, generator.iter.args[0])
            and not generator.ifs
        )
        is_same = isinstance(node.elt, ast.Name) and isinstance(generator.target, ast.Name)
        if is_counted and is_same and node.elt.id != generator.target.id:  # type: ignore[attr-defined]
            return node.elt
    return None


def _broadcast(module: Module, node: ast.expr, shape: ast.expr) -> ast.expr | None:
    """``broadcast_to(x, (n,) + x.shape)`` and ``broadcast_to(x, (n, *x.shape))``."""
    parts: list[ast.expr] = []
    if isinstance(shape, ast.BinOp) and isinstance(shape.op, ast.Add):
        if isinstance(shape.left, ast.Tuple):
            parts = [*shape.left.elts, shape.right]
    elif isinstance(shape, ast.Tuple):
        parts = [part.value if isinstance(part, ast.Starred) else part for part in shape.elts]
    if len(parts) != 2 or not _is_count(module, parts[0]):
        return None
    of = None
    if isinstance(parts[1], ast.Attribute) and parts[1].attr == "shape":
        of = parts[1].value
    elif isinstance(parts[1], ast.Call) and len(parts[1].args) == 1:
        is_shape = names_called(module, parts[1]) <= {"jax.numpy.shape", "numpy.shape"}
        of = parts[1].args[0] if is_shape else None
    return node if of is not None and ast.dump(of) == ast.dump(node) else None


def _is_count(module: Module, node: ast.expr) -> bool:
    return bool(module.facts.results.get(node, frozenset()) & known_names.DEVICE_COUNTS)
