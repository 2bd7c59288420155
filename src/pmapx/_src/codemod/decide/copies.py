"""Calls that stack a copy of a tree for each device, and calls that take the first."""

from __future__ import annotations

import ast
import dataclasses

from pmapx._src.analysis import known_names, syntax
from pmapx._src.analysis.interpreter.indexing import index_taken
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Function, Named
from pmapx._src.codemod.decide.array_expressions import ArrayExpressions, is_number
from pmapx._src.codemod.decide.assigned_values import (
    block_of,
    built_of,
    is_always,
    passed_values,
)

MAKERS = known_names.REPLICATE | {"jax.device_put_replicated"}
UNREPLICATE = known_names.UNREPLICATE - {"flax.training.common_utils.get_metrics"}
TO_HOST = frozenset({"jax.device_get", "numpy.asarray", "numpy.array"})
# These take the first, and bring it to the host unless they are asked not to.
_FIRST_ON_HOST = frozenset({"acme.jax.utils.get_from_first_device"})
_FULLS = frozenset({"jax.numpy.full", "numpy.full"})
STACKS = frozenset({"jax.numpy.stack", "numpy.stack", "jax.numpy.array", "numpy.array"})
_ARRAYS = frozenset({"jax.numpy.array", "jax.numpy.asarray", "numpy.array", "numpy.asarray"})
# What these make of a number has a dtype, while that itself has a weak type.
_STRONG = _ARRAYS | {"numpy.stack"}
_REPEATS = frozenset({"jax.numpy.repeat", "numpy.repeat"})
_TILES = frozenset({"jax.numpy.tile", "numpy.tile"})
_EXPANDS = frozenset({"jax.numpy.expand_dims", "numpy.expand_dims", "jax.lax.expand_dims"})
_LIKE = frozenset(f"jax.numpy.{name}" for name in ("zeros_like", "ones_like", "copy"))
_PUTS = frozenset({"jax.device_put"})
_SHARDED = frozenset({"jax.device_put_sharded"})
_BROADCASTS = frozenset({"jax.numpy.broadcast_to", "numpy.broadcast_to"})


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """What a copy is stacked of for each device, and the devices, None for all that there are."""

    tree: ast.expr
    devices: ast.expr | None = None


def takes_first(call: ast.Call, only: int | None = None) -> bool:
    """Returns whether a call is ``tree_map(lambda x: x[0], tree)``, for one index or for any."""
    if len(call.args) != 2 or call.keywords or not isinstance(call.args[0], ast.Lambda):
        return False
    index = index_taken(call.args[0])
    return index is not None and only in (None, index)


def to_host(call: ast.Call, called: frozenset[str]) -> str:
    """Returns what a call that takes the first does with it: bring it to the host, or nothing."""
    asked = [keyword.value for keyword in call.keywords if keyword.arg == "as_numpy"]
    is_asked = all(isinstance(each, ast.Constant) and each.value is True for each in asked)
    return "jax.device_get" if called <= _FIRST_ON_HOST and is_asked else ""


def conversion(module: Module, call: ast.AST, tree: ast.expr) -> tuple[str, str] | None:
    """Returns what keeps the dtype, and is written around what a call stacks copies of.

    In ``jnp.array([lr] * n)``, the number ``lr`` gets a dtype, while itself it has a weak type.
    ``jnp.full((n,), lr)`` becomes ``jnp.full((), lr)``, which fails if ``lr`` is no scalar. None
    if the file has no name for NumPy.
    """
    names = names_called(module, call)
    function = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    if names and names <= _FULLS and isinstance(call, ast.Call):
        return f"{function}((), ", "".join(f", {ast.unparse(p)}" for p in _dtype(call)) + ")"
    if names and names <= _BROADCASTS and _is_of_scalar(module, call):
        return f"{function}(", ", ())"
    block = block_of(module, tree)
    is_mapped = bool(names) and names <= known_names.TREE_MAP and isinstance(call, ast.Call)
    applied = call.args[0] if is_mapped else None  # type: ignore[attr-defined]
    mapped = definition(module, applied, call) if applied is not None else None
    if mapped is not None:
        # Not asarray: what a donated argument is made of may be used again.
        start = "jax.tree.map({}.array, "
        is_needed = _is_strong(module, mapped) and _holds_numbers(module, tree)
    else:
        is_array = isinstance(tree, ast.Call) and bool(names_called(module, tree))
        is_strong = bool(names) and names <= _STRONG and not isinstance(block, ast.Lambda)
        start = "{}.asarray("
        is_needed = is_strong and not is_array
        is_needed &= not ArrayExpressions(module, block, frozenset()).is_array(tree)
    if not is_needed:
        return "", ""
    held = module.env.names.items()
    name = next((name for name, facts in held if facts == frozenset({Named("numpy")})), None)
    return None if name is None else (start.format(name), ")")


def _is_strong(module: Module, function: ast.FunctionDef | ast.Lambda) -> bool:
    """Returns whether what a function stacks has a dtype, where a number has a weak type."""
    results = [function.body] if isinstance(function, ast.Lambda) else [
        part.value for part in ast.walk(function) if isinstance(part, ast.Return) and part.value
    ]  # fmt: skip
    inside = {name for part in ast.walk(function) for name in names_called(module, part)}
    is_numpy = any(name.startswith("numpy.") for name in inside)
    return is_numpy or any(names_called(module, result) & _STRONG for result in results)


def _holds_numbers(module: Module, tree: ast.expr) -> bool:
    """Returns whether a tree is seen to have a number of Python's as a leaf, or as a field."""
    parts = built_of(module, tree)
    return any(is_number(part, block_of(home, part)) for home, part in parts)


def _dtype(call: ast.Call) -> list[ast.expr | ast.keyword]:
    """Returns the dtype that ``full(shape, value, dtype)`` is given, if it is."""
    return [*call.args[2:3], *(keyword for keyword in call.keywords if keyword.arg == "dtype")]


def _is_of_scalar(module: Module, call: ast.AST) -> bool:
    """Returns whether a call makes an array of which each device gets one number."""
    names = names_called(module, call)
    if not isinstance(call, ast.Call) or not names or not names <= _FULLS | _BROADCASTS:
        return False
    is_full = names <= _FULLS
    dtype = _dtype(call) if is_full else []
    if len(call.args) + len(call.keywords) - len(dtype) != 2 or len(call.args) < 2:
        return False
    shape = call.args[0 if is_full else 1]
    count = shape.elts[0] if isinstance(shape, ast.Tuple) and len(shape.elts) == 1 else shape
    return _is_count(module, count)


def copied(module: Module, call: ast.Call, called: frozenset[str]) -> Copied | None:
    """Returns what a call stacks copies of: ``jnp.stack([x] * n)``, alone or in a tree_map."""
    if called and called <= known_names.TREE_MAP and len(call.args) == 2 and not call.keywords:
        found = _copied_by(module, call.args[0], call)
        has_name = found is not None and conversion(module, call, call.args[1]) is not None
        return Copied(call.args[1], found.devices) if found is not None and has_name else None
    found = _of(module, call, called)
    has_name = found is None or conversion(module, call, found.tree) is not None
    return found if has_name else None


def _copied_by(module: Module, node: ast.expr, call: ast.Call) -> Copied | None:
    """Returns what a function stacks copies of, if that is its parameter."""
    function = definition(module, node, call)
    if function is None or len(function.args.args) != 1:
        return None
    if isinstance(function, ast.Lambda):
        results: list[ast.expr | None] = [function.body]
    elif _leaves_alone(module, function, function.args.args[0].arg):
        results = [part.value for part in ast.walk(function) if isinstance(part, ast.Return)]
    else:
        return None
    found: list[Copied] = []
    for result in results:
        one = (
            _of(module, result, names_called(module, result))
            if (isinstance(result, ast.Call))
            else None
        )
        is_own = one is not None and isinstance(one.tree, ast.Name)
        is_own = is_own and result is not None and not _is_of_scalar(module, result)
        if one is None or not is_own or one.tree.id != function.args.args[0].arg:  # type: ignore[attr-defined]
            return None
        names = ast.walk(one.devices) if one.devices is not None else ()
        bound = module.facts.definitions.bound
        if any(isinstance(part, ast.Name) and (function, part.id) in bound for part in names):
            # Its devices are not known where it is called.
            return None
        found.append(one)
    return found[0] if found else None


def _leaves_alone(module: Module, function: ast.FunctionDef, parameter: str) -> bool:
    """Returns whether a function does no more with its parameter than return something of it."""
    body = syntax.body(function)
    return isinstance(body[-1], ast.Return) and all(_is_plain(module, s, parameter) for s in body)


def _is_plain(module: Module, statement: ast.stmt, parameter: str) -> bool:
    """Returns whether a statement returns, or gives a name to something else."""
    if isinstance(statement, ast.If):
        inside = (*statement.body, *statement.orelse)
        return all(_is_plain(module, each, parameter) for each in inside)
    if not isinstance(statement, ast.Assign):
        return isinstance(statement, ast.Return)
    names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
    value = statement.value
    is_same = (
        isinstance(value, ast.Call)
        and bool(names_called(module, value))
        and names_called(module, value) <= _ARRAYS
        and [ast.unparse(arg) for arg in value.args] == [parameter]
        and not value.keywords
    )
    return len(names) == len(statement.targets) and (parameter not in names or is_same)


def definition(
    module: Module, node: ast.expr, call: ast.AST
) -> ast.FunctionDef | ast.Lambda | None:
    """Returns a lambda, or the only function that a name is bound to around a call."""
    if not isinstance(node, ast.Name):
        return node if isinstance(node, ast.Lambda) else None
    for scope in (*module.functions_around(call), module.source.tree):
        bound = module.facts.definitions.bound.get((scope, node.id))
        if bound:
            first, *others = bound
            found = first.source if isinstance(first.source, ast.Lambda) else first.node
            is_plain = not others and not first.steps and not getattr(found, "decorator_list", ())
            is_function = isinstance(found, (ast.FunctionDef, ast.Lambda))
            return found if is_plain and is_function else None  # type: ignore[return-value]
    return None


def before_host(module: Module, node: ast.expr) -> ast.expr:
    """Returns what a call brings to the host, and the node itself if it is no such call."""
    while isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        names = names_called(module, node)
        if not names or not names <= TO_HOST:
            break
        node = node.args[0]
    return node


def is_on_host(module: Module, node: ast.expr, depth: int = 4) -> bool:
    """Returns whether a value is, or is a part of, what was brought to the host before."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name) and depth:
        found = module.facts.definitions.of_name(module, node)
        sources = [(each.module, each.source) for each in found if each.source is not None]
        for each in found:
            if isinstance(each.node, ast.arg):
                function = each.module.parent(each.module.parent(each.node))
                sources += passed_values(each.module, function, each.node.arg)
        return any(is_on_host(home, source, depth - 1) for home, source in sources)
    return before_host(module, node) is not node


def is_like(module: Module, node: ast.expr) -> bool:
    """Returns whether a function gives an array with the shape and the axes of its argument."""
    found = module.facts.references.get(node)
    return found is not None and found.name in _LIKE


def names_called(module: Module, call: ast.AST) -> frozenset[str]:
    """Returns the outside functions that a call may be of."""
    found = module.facts.calls.get(call)
    return found.names if found is not None else frozenset()


def _of(module: Module, call: ast.Call, called: frozenset[str]) -> Copied | None:
    if not called:
        return None
    args = call.args
    if called <= _PUTS and len(args) == 2 and isinstance(args[0], ast.Call) and not call.keywords:
        # The copies are put on their devices at once.
        return _of(module, args[0], names_called(module, args[0]))
    if called <= _SHARDED and len(args) == 2 and not call.keywords:
        found = _repeated(module, args[0])
        return None if found is None else Copied(found.tree, args[1])
    axis = args[2] if len(args) == 3 else next(iter(k.value for k in call.keywords), None)
    if called <= _REPEATS and len(args) + len(call.keywords) == 3:
        is_first = isinstance(axis, ast.Constant) and axis.value == 0
        one = _with_one(module, args[0])
        if is_first and one is not None and _is_count(module, args[1]):
            return Copied(one, _devices(module, args[1]))
        return None
    if _is_of_scalar(module, call):
        number, shape = args[:2] if called <= _BROADCASTS else args[1::-1]
        count = shape.elts[0] if isinstance(shape, ast.Tuple) else shape
        return Copied(number, _devices(module, count))
    if call.keywords:
        return None
    if called <= STACKS and len(args) == 1:
        return _repeated(module, args[0])
    if called <= _BROADCASTS and len(args) == 2:
        return _broadcast(module, args[0], args[1])
    if called <= _TILES and len(args) == 2:
        return _tiled(module, args[0], args[1])
    return None


def _tiled(module: Module, node: ast.expr, times: ast.expr) -> Copied | None:
    """``tile(x[None], (n, 1, 1))`` and ``tile(x[None], (n,) + (1,) * x.ndim)``."""
    one = _with_one(module, node)
    if one is None:
        return None
    rest: list[ast.expr] = []
    if isinstance(times, ast.BinOp) and isinstance(times.op, ast.Add):
        ones = times.right
        is_repeated = isinstance(ones, ast.BinOp) and isinstance(ones.op, ast.Mult)
        several = (ones.left, ones.right) if is_repeated else ()  # type: ignore[attr-defined]
        tuples = [each for each in several if isinstance(each, ast.Tuple)]
        rest = tuples[0].elts if len(tuples) == 1 else [ones]
        times = times.left
    if not isinstance(times, ast.Tuple) or not times.elts:
        return None
    rest = [*times.elts[1:], *rest]
    is_plain = bool(rest) and all(isinstance(x, ast.Constant) and x.value == 1 for x in rest)
    count = times.elts[0]
    return Copied(one, _devices(module, count)) if is_plain and _is_count(module, count) else None


def _with_one(module: Module, node: ast.expr) -> ast.expr | None:
    """``x[None]`` and ``expand_dims(x, 0)``."""
    if isinstance(node, ast.Subscript):
        chosen = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
        is_plain = not isinstance(node.slice, ast.Tuple) or (
            len(node.slice.elts) == 2
            and isinstance(node.slice.elts[1], ast.Constant)
            and node.slice.elts[1].value is ...
        )
        is_none = isinstance(chosen, ast.Constant) and chosen.value is None
        return node.value if is_none and is_plain else None
    if isinstance(node, ast.Call) and names_called(module, node) <= _EXPANDS:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        is_first = len(given) == 2 and isinstance(given[1], ast.Constant) and given[1].value == 0
        return given[0] if is_first and names_called(module, node) else None
    return None


def _repeated(module: Module, node: ast.expr) -> Copied | None:
    """``[x] * n`` or ``[x for _ in range(n)]``, with n the number of devices."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for one, count in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.List) and len(one.elts) == 1 and _is_count(module, count):
                return Copied(_as_array(module, one.elts[0]), _devices(module, count))
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
            return Copied(node.elt, _devices(module, generator.iter.args[0]))  # type: ignore[attr-defined]
    return None


def _as_array(module: Module, node: ast.expr) -> ast.expr:
    """Returns what ``jnp.asarray(x)`` makes an array of, which a stack does anyway."""
    is_plain = isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
    names = names_called(module, node) if is_plain else frozenset()
    return node.args[0] if names and names <= _ARRAYS else node  # type: ignore[attr-defined]


def _broadcast(module: Module, node: ast.expr, shape: ast.expr) -> Copied | None:
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
    is_own = of is not None and ast.dump(of) == ast.dump(node)
    return Copied(node, _devices(module, parts[0])) if is_own else None


def _is_count(module: Module, node: ast.expr) -> bool:
    return is_always(module, node) or _counted(module, node) is not None


def _counted(module: Module, node: ast.expr) -> ast.expr | None:
    """Returns the devices that ``len(devices)`` counts."""
    is_len = isinstance(node, ast.Call) and names_called(module, node) == {"builtins.len"}
    held = node.args[0] if is_len and len(node.args) == 1 else None  # type: ignore[attr-defined]
    if held is None:
        return None
    return held if _is_devices(module, held) else None


def _is_devices(module: Module, node: ast.expr) -> bool:
    """Returns whether it is ``jax.local_devices()``, or some of these, under whatever name."""
    if module.facts.is_result(node, known_names.DEVICES):
        return True
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        return _is_devices(module, node.value)
    if not isinstance(node, ast.Name):
        return False
    for scope in (*module.functions_around(node), module.source.tree):
        bound = module.facts.definitions.bound.get((scope, node.id))
        if bound:
            sources = [each.source for each in bound]
            is_one = len(sources) == 1 and not isinstance(sources[0], ast.Name)
            if is_one and sources[0] is not None and _is_devices(module, sources[0]):
                return True
            return _is_all_by_default(module, scope, node.id)
    return False


def _is_all_by_default(module: Module, function: ast.AST, name: str) -> bool:
    """Returns whether no call gives a parameter for which all devices are the default.

    ``devices = devices or jax.local_devices()``, or the same by ``if devices is None``.
    """
    if not isinstance(function, ast.FunctionDef):
        return False
    default = syntax.defaults(function.args).get(name)
    if not isinstance(default, ast.Constant) or default.value is not None:
        return False
    for each in module.facts.definitions.bound[function, name]:
        source = each.source
        parts = [source] if source is not None else []
        if isinstance(source, ast.BoolOp) and isinstance(source.op, ast.Or):
            parts = source.values
        elif isinstance(source, ast.IfExp):
            parts = [source.body, source.orelse]
        others = [p for p in parts if not (isinstance(p, ast.Name) and p.id == name)]
        is_default = isinstance(each.node, ast.arg) or others == [default]
        if not is_default and not (others and all(_is_devices(module, p) for p in others)):
            return False
    names = syntax.positional(function.args)
    position = names.index(name) if name in names else len(names)
    return not any(
        isinstance(fact, Function) and fact.node is function and _gives(call, name, position)
        for other in module.project.modules.values()
        if other is not None
        for call, callee in other.facts.callees.items()
        for fact in callee
    )


def _gives(call: ast.AST, name: str, position: int) -> bool:
    if not isinstance(call, ast.Call):
        return True
    is_open = any(isinstance(arg, ast.Starred) for arg in call.args)
    is_named = any(keyword.arg in (name, None) for keyword in call.keywords)
    return is_open or is_named or len(call.args) > position


def _devices(module: Module, count: ast.expr) -> ast.expr | None:
    """Returns the devices that copies are made for, None for all that there are."""
    held = _counted(module, count)
    bound = module.facts.definitions.bound
    for scope in module.functions_around(held) if isinstance(held, ast.Name) else ():
        if (scope, held.id) in bound:  # type: ignore[union-attr]
            return None if _is_all_by_default(module, scope, held.id) else held  # type: ignore[union-attr]
    return None if isinstance(held, ast.Call) else held
