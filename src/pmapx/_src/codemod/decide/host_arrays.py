"""Arrays of NumPy that code may change in place, directly or through a view.

``row = w[1]; row += 1`` changes ``w``. Under pmap, copies that ``np.stack`` made are such arrays
until a step takes them, and ``jnp.stack([x] * n)`` copies an array that changes later, where
``jax.device_put`` may share its memory.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import given_arguments
from pmapx._src.analysis.values import Bound, Function
from pmapx._src.codemod.decide import copies
from pmapx._src.codemod.decide.assigned_values import block_of, built_of, calls_of

_Use = tuple[Module, ast.AST, bool]
_DEEPEST = 8
_NEW = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.FormattedValue, ast.Expr, ast.If, ast.While)
# They hold the array itself, or are one of several that do.
_HOLDERS = (ast.Tuple, ast.List, ast.Dict, ast.Starred, ast.ListComp, ast.DictComp, ast.IfExp)
_CHANGING = frozenset(f"numpy.{name}" for name in ("copyto", "put", "place", "putmask"))
_CHANGING_METHODS = frozenset({"fill", "sort", "put", "partition", "resize", "itemset"})
_VIEWING_METHODS = frozenset({"ravel", "reshape", "squeeze", "swapaxes", "transpose", "view"})
# What else gives the memory of its argument on: most of NumPy may.
_VIEWING = frozenset({"jax.device_get", "copy.copy", "typing.cast"}) | {
    f"builtins.{name}"
    for name in ("dict", "enumerate", "iter", "list", "map", "next", "reversed", "tuple", "zip")
}


def is_host_made(module: Module, call: ast.Call) -> bool:
    """Tells whether the copies that a call stacks are an array of NumPy that can be written to."""
    if copies.names_called(module, call) & {"jax.device_put", *copies.MAKERS}:
        return False
    inner = copies.definition(module, call.args[0], call) if call.args else None
    calls = [part for root in (call, inner) if root is not None for part in ast.walk(root)]
    names = {name for part in calls for name in copies.names_called(module, part)}
    return any(n.startswith("numpy.") and n != "numpy.broadcast_to" for n in names)


def may_change(module: Module, node: ast.AST, unknown: bool) -> bool:
    """Tells whether an array may be changed through an expression that holds it, or a view of it.

    ``unknown`` is the answer for code that cannot be read.
    """
    waiting: list[_Use] = [(module, node, unknown)]
    seen = set[tuple[ast.AST, bool]]()
    for _ in range(_DEEPEST):
        uses, waiting = waiting, []
        for home, use, is_unknown in uses:
            if (use, is_unknown) not in seen:
                seen.add((use, is_unknown))
                found = _used(home, use, is_unknown)
                if found is True:
                    return True
                waiting += found or ()
    return any(is_unknown for _, _, is_unknown in waiting)


def _used(module: Module, node: ast.AST, unknown: bool) -> bool | list[_Use]:
    """Returns whether a use of an array changes it, or where else the array is used then."""
    above = module.parent(node)
    if isinstance(above, ast.AugAssign):
        return above.target is node
    if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load) or isinstance(above, _NEW):
        return False
    if isinstance(above, ast.keyword):
        if above.arg == "out":
            return True
        above = module.parent(above)
    block = block_of(module, above)
    match above:
        case ast.Subscript(value=value, ctx=context):
            is_stored = value is node and not isinstance(context, ast.Load)
            return is_stored or ([(module, above, unknown)] if value is node else False)
        case ast.Attribute():
            return _attribute(module, above, unknown)
        case ast.Call():
            return _call(module, above, node, unknown)
        case ast.Assign(targets=targets):
            parts = [part for target in targets for part in ast.walk(target)]
            names = {part.id for part in parts if isinstance(part, ast.Name)}
            found = [(module, use) for use in _uses(block, names)]
            for part in parts:
                found += _attributes(module, part.attr) if isinstance(part, ast.Attribute) else ()
            return [(home, use, unknown) for home, use in found]
        case ast.For(target=target, iter=taken, body=body) if taken is node:
            names = {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
            return [(module, use, unknown) for part in body for use in _uses(part, names)]
        case ast.Return():
            return [(home, call, False) for home, call in calls_of(module, block)]
    return [(module, above, unknown)] if isinstance(above, _HOLDERS) else unknown


def changes_later(module: Module, tree: ast.expr) -> bool:
    """Tells whether an array in a tree is seen to be changed in place somewhere."""
    for home, part in built_of(module, tree):
        found: list[tuple[Module, ast.AST]] = []
        if isinstance(part, ast.Name):
            found = [(home, use) for use in _uses(block_of(home, part), {part.id})]
        elif isinstance(part, ast.Attribute):
            found = _attributes(home, part.attr)
        if any(may_change(each, use, unknown=False) for each, use in found):
            return True
    return False


def _attributes(module: Module, name: str) -> list[tuple[Module, ast.AST]]:
    """Returns where a program uses attributes of a name."""
    homes = [home for home in module.project.modules.values() if home is not None]
    return [(home, node) for home in homes for node in home.attribute_uses.get(name, ())]


def _uses(block: ast.AST, names: set[str]) -> Iterator[ast.AST]:
    known = _names_in(block)
    return itertools.chain.from_iterable(known.get(name, ()) for name in names)


@functools.lru_cache(maxsize=64)
def _names_in(block: ast.AST) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for part in ast.walk(block):
        if isinstance(part, ast.Name):
            found.setdefault(part.id, []).append(part)
    return found


def _attribute(module: Module, node: ast.Attribute, unknown: bool) -> bool | list[_Use]:
    if node.attr in known_names.METADATA:
        return False
    above = module.parent(node)
    is_method = isinstance(above, ast.Call) and above.func is node
    if is_method and node.attr not in _VIEWING_METHODS:
        is_array = node.attr in known_names.ARRAY_ATTRIBUTES
        return node.attr in _CHANGING_METHODS or (unknown and not is_array)
    return [(module, above if is_method else node, unknown)]


def _call(module: Module, call: ast.Call, node: ast.AST, unknown: bool) -> bool | list[_Use]:
    names = copies.names_called(module, call)
    if names & _CHANGING or getattr(call.func, "attr", "") in ("shuffle", *_CHANGING_METHODS):
        return True
    if names:
        is_view = bool(names & _VIEWING) or any(name.startswith("numpy.") for name in names)
        return [(module, call, unknown)] if is_view else False
    callees = module.facts.callees.get(call, frozenset())
    found: list[_Use] = []
    for fact in callees:
        known = fact.function if isinstance(fact, Bound) else fact
        if not isinstance(known, Function):
            if unknown:
                return True
            continue
        given = given_arguments(call, known.node, int(isinstance(fact, Bound)))
        names_given = {name for name, arg in given if name and arg is node}
        found += [(known.module, use, unknown) for use in _uses(known.node, names_given)]
    return found if callees else unknown
