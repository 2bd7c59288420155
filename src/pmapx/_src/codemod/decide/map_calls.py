"""The calls of each map of a program, in whichever file, and how many shards they pass."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site
from pmapx._src.analysis.values import Mapped, Named
from pmapx._src.codemod.decide.assigned_values import (
    Given,
    assigned_values,
    block_of,
    built_of,
    calls_of,
    is_always,
)
from pmapx._src.codemod.decide.copies import MAKERS, STACKS, definition, names_called

# Functions of NumPy and jax.numpy that take a shape, or a size, and where.
_SHAPED = dict.fromkeys(("zeros", "ones", "full", "empty"), 0) | {
    "reshape": 1, "broadcast_to": 1, "tile": 1,
}  # fmt: skip
_BY_SECOND = MAKERS | {"jax.random.split", "jax.numpy.repeat", "numpy.repeat"}
_STACKING = STACKS | {"jax.device_put_sharded"}
_PLACES = MAKERS | {"jax.device_put_sharded"}


def map_calls(module: Module, site: Site) -> list[tuple[Module, ast.Call]]:
    """Returns the calls of a map, each once."""
    return list(dict.fromkeys(each for p in site.places for each in calls_of(module, p)))


def counts_devices(module: Module, node: ast.AST, arg: ast.expr) -> bool:
    """Returns whether an argument of a map at a node is seen to have a shard for each device."""
    trees = [arg]
    if isinstance(arg, ast.Name):
        trees += assigned_values(block_of(module, node), arg.id)
    facts = module.facts
    return any(
        facts.is_result(part, known_names.DEVICE_COUNTS)
        or any(isinstance(fact, Mapped) for fact in facts.callees.get(part, ()))
        or (part in facts.calls and facts.calls[part].names & _PLACES)
        for tree in trees
        for part in ast.walk(tree)
    )


def is_part(arg: ast.expr) -> bool:
    """Returns whether an argument is a part of an array along the leading axis."""
    index = arg.slice if isinstance(arg, ast.Subscript) else None
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    return isinstance(first, ast.Slice) and bool(first.upper or first.lower)


def whole_counts(arguments: Iterable[Given]) -> list[bool]:
    """Returns whether each size that arguments of a map are seen to get is that of all devices.

    ``x.reshape(n, -1)``, ``jnp.stack([x] * n)`` and ``jax.random.split(key, n)`` have n shards.
    """
    sizes = {
        size: home
        for given, arg in arguments
        for home, part in built_of(given, arg)
        if (size := _leading_size(home, part)) is not None and not isinstance(size, ast.UnaryOp)
    }
    return [
        is_always(home, size) or is_always(home, size, known_names.DEVICES)
        for size, home in sizes.items()
    ]


def _leading_size(module: Module, node: ast.expr) -> ast.expr | None:
    """Returns the size of the leading axis of what an expression makes, if that is written."""
    if not isinstance(node, ast.Call) or any(isinstance(arg, ast.Starred) for arg in node.args):
        return None
    names, args = _names(module, node), node.args
    short = {name.rpartition(".")[2] for name in names}
    if not names and getattr(node.func, "attr", "") == "reshape":
        return _first(module, args)
    if not short or len(short) > 1 or not args:
        return None
    (name,) = short
    if names <= known_names.TREE_MAP:
        mapped = definition(module, args[0], node)
        return _leading_size(module, mapped.body) if isinstance(mapped, ast.Lambda) else None
    if name in ("asarray", "device_put"):
        return _leading_size(module, args[0])
    if name in _SHAPED and all(n.startswith(("jax.numpy.", "numpy.")) for n in names):
        return _first(module, args[_SHAPED[name] :])
    if names <= _BY_SECOND:
        return args[1] if len(args) > 1 else None
    if names <= _STACKING and isinstance(args[0], ast.BinOp) and isinstance(args[0].op, ast.Mult):
        one, other = args[0].left, args[0].right
        return other if isinstance(one, ast.List) else one if isinstance(other, ast.List) else None
    return None


def _names(module: Module, node: ast.Call) -> frozenset[str]:
    """Returns the outside functions that a call may be of, also where nothing followed is in it."""
    root, _, path = ast.unparse(node.func).partition(".")
    is_plain = path.replace(".", "").isidentifier()
    known = names_called(module, node) or (is_plain and module.env.find(root)) or frozenset()
    return frozenset(
        fact if isinstance(fact, str) else f"{fact.name}.{path}"
        for fact in known
        if isinstance(fact, (str, Named))
    )


def _first(module: Module, shape: Sequence[ast.expr]) -> ast.expr | None:
    """Returns the first size of a shape: ``(n, -1)``, ``n, -1`` or ``(n, -1) + x.shape[1:]``."""
    first = shape[0] if shape else None
    while isinstance(first, ast.BinOp) and isinstance(first.op, ast.Add):
        first = first.left
    if isinstance(first, ast.Name) and len(shape) == 1:
        # One name is a size, or a shape.
        tuples = [part for _, part in built_of(module, first) if isinstance(part, ast.Tuple)]
        first = tuples[0] if len(tuples) == 1 else None
    if isinstance(first, (ast.Tuple, ast.List)):
        first = first.elts[0] if first.elts else None
    return None if isinstance(first, ast.Starred) else first
