"""What functions from outside the program do with values that vary."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from pmapx._src.analysis import known_names
from pmapx._src.codemod.varying.differing import WORDS
from pmapx._src.codemod.varying.values import (
    MOST_ROUNDS,
    Cause,
    Fresh,
    Given,
    Gradient,
    Items,
    Library,
    Literal,
    NotFollowedError,
    Partial,
    Table,
    Value,
    any_of,
    cause_of,
    is_none,
    join,
    joined,
    shape,
    sharing,
)

if TYPE_CHECKING:
    from pmapx._src.codemod.varying.calls import Calls

# What DynamicScale.value_and_grad(f, axis_name=...) returns.
SCALED_GRADIENT = "flax.training.dynamic_scale.DynamicScale.value_and_grad()"
_REDUCTIONS = frozenset(
    {
        *(f"jax.lax.{name}" for name in ("pmean", "psum", "pmax", "pmin", "all_gather")),
        "kfac_jax.utils.pmean_if_pmap", "kfac_jax.utils.psum_if_pmap",
    }
)  # fmt: skip
# These put what they are given into their first argument.
_STORING = frozenset(
    {
        *(f"builtins.list.{name}" for name in ("append", "extend", "insert")), "operator.setitem",
        *(f"builtins.dict.{name}" for name in ("update", "setdefault")), "builtins.set.add",
        *(f"numpy.{name}" for name in ("copyto", "put", "place", "putmask")), "heapq.heappush",
    }
)  # fmt: skip
# What these return has parts of their arguments.
_SHARING = frozenset(
    {
        *(f"builtins.{name}" for name in ("zip", "enumerate", "reversed", "sorted", "iter")),
        *(f"builtins.{name}" for name in ("next", "map", "filter", "list", "tuple", "dict")),
        "builtins.min", "builtins.max", "copy.copy", "copy.replace", "dataclasses.replace",
        "operator.getitem",
    }
)  # fmt: skip
# By the last part of the name, wherever they are imported from.
_DIFFERING = WORDS | {
    "call", "process_index", "host_id", "urandom", "time", "time_ns", "perf_counter", "monotonic",
    "uuid4", "getpid", "gethostname", "input", "pcast", "pvary", "pbroadcast",
}  # fmt: skip
# Modules of Flax's nnx change in place when they are called.
_DIFFERING_MODULES = (
    "flax.nnx.",
    "numpy.random.",
    "random.",
    "secrets.",
    "uuid.",
    "socket.",
    "os.",
    "time.",
)
# What these return is called as the first argument is, and gives the same.
_SAME_FUNCTION = (
    known_names.JIT
    | (known_names.SAME_CALLABLE - {"functools.wraps", "haiku.without_apply_rng"})
    | {
        "jax.ad_checkpoint.checkpoint", "flax.linen.jit", "flax.linen.remat", "haiku.remat",
        "haiku.jit", "kfac_jax.utils.wrap_if_pmap", "equinox.filter_vmap", "haiku.vmap",
    }
)  # fmt: skip
_LOOKING = frozenset(
    {
        "builtins.isinstance", "builtins.hasattr", "builtins.len", "builtins.type",
        "builtins.callable", "builtins.issubclass", "jax.numpy.shape", "jax.numpy.ndim",
        "numpy.shape", "numpy.ndim", "jax.numpy.result_type", "jax.eval_shape",
        "jax.tree_util.tree_structure", "jax.tree.structure", "jax.numpy.zeros_like",
        "jax.numpy.ones_like", "jax.device_count", "jax.local_device_count", "builtins.print",
        "jax.debug.print", "jax.process_count",
    }
)  # fmt: skip
_REFUSED = frozenset(
    {"builtins.eval", "builtins.exec", "builtins.globals", "builtins.locals", "builtins.setattr",
     "builtins.vars", "builtins.delattr"}
)  # fmt: skip
# A custom rule is not seen by a derivative of the function.
_CUSTOM = ("jax.custom_vjp", "jax.custom_jvp", "jax.custom_gradient", "jax.custom_derivatives")


def call(reader: Calls, name: str, given: Given, node: ast.AST) -> Value:
    """Returns what a call of an outside function gives."""
    line = getattr(node, "lineno", 0)
    leaf = name.rpartition(".")[2]
    if name in _REDUCTIONS:
        return _reduced(reader, given, node)
    if name in _REFUSED:
        raise NotFollowedError(f"{leaf}(...)", line)
    if (leaf in _DIFFERING and name.startswith(("jax", "time", "os", "uuid", "builtins"))) or (
        name.startswith(_DIFFERING_MODULES)
    ):
        return Fresh(Cause(f"{leaf}(...)", line))
    if name in _LOOKING:
        return Fresh()
    if name in _STORING and given.args:
        reader.store(given.args[0], [*given.every[1:]])
    if name == SCALED_GRADIENT:
        # The scale, whether all gradients are finite, the value, and the gradients.
        inner = Given(given.args[1:], given.keywords, given.rest)
        value = reader.call(given.args[0], inner, node)
        return Items(items=[Fresh(), Fresh(), value, Fresh()])
    if name.startswith(_CUSTOM) and reader.program.differing.is_any:
        return Fresh(Cause(f"{leaf}(...)", line))
    found = _known(reader, name, given, node) if given.rest is None else None
    if found is not None:
        return found
    # A layer that normalizes uses the axis only to reduce over it.
    is_norm = "Norm" in leaf or "ExponentialMovingAverage" in leaf
    if not is_norm and any(_names_axis(reader, each) for each in given.every):
        return Fresh(Cause(f"{leaf}(...), which is given the mapped axis", line))
    result = reader.outcome(given.every, node)
    is_sharing = name in _SHARING or name.startswith(("itertools.", "collections."))
    return sharing(result, given.every) if is_sharing else result


def _known(reader: Calls, name: str, given: Given, node: ast.AST) -> Value | None:
    """Returns what a function of which more is known gives; None for all others."""
    args, keywords = given.args, given.keywords
    first = args[0] if args else None
    if name in known_names.PARTIAL and first is not None:
        return Partial(function=first, args=args[1:], keywords=keywords)
    if name in _SAME_FUNCTION:
        _refuse_same_axis(reader, keywords, node)
        return first if first is not None else Partial(function=Library(name=name), keywords={})
    if name == "functools.wraps":
        return Library(name="jax.named_call")
    if name in known_names.GRADIENT | known_names.VALUE_AND_GRADIENT and first is not None:
        aux = given.get(2, "has_aux") or Literal(value=False)
        has_aux = bool(aux.value) if isinstance(aux, Literal) else None
        has_value = name in known_names.VALUE_AND_GRADIENT
        return Gradient(function=first, has_value=has_value, has_aux=has_aux)
    if name in known_names.TREE_MAP and len(args) > 1:
        return any_of(reader.call(args[0], Given(list(map(any_of, args[1:]))), node))
    if name in known_names.IDENTITY - {"builtins.dict", "builtins.iter"} and first is not None:
        return args[1] if name == "typing.cast" and len(args) > 1 else first
    if name in known_names.DICTS and not args:
        return Table(items=dict(keywords))
    if name in ("builtins.tuple", "builtins.list") and isinstance(first, Items):
        return Items(first.cause, (first,), list(first.items), first.nodes, first.is_open)
    if name == "builtins.getattr" and len(args) >= 2 and isinstance(args[1], Literal):
        return joined([reader.attribute(args[0], str(args[1].value), node), *args[2:]])
    control = _CONTROL.get(name)
    return None if control is None else control(reader, given, node)


def _refuse_same_axis(reader: Calls, keywords: dict[str, Value], node: ast.AST) -> None:
    for name in keywords.keys() & {"axis_name", "spmd_axis_name"}:
        held = keywords[name]
        is_known = isinstance(held, Literal) and reader.axis is not ...
        if not is_known or held.value == reader.axis:  # type: ignore[attr-defined]
            raise NotFollowedError("an inner axis", getattr(node, "lineno", 0))


def _reduced(reader: Calls, given: Given, node: ast.AST) -> Value:
    """A reduction over the mapped axis is equal on all devices; over another, it is not."""
    axis = given.get(1, "axis_name") or given.rest
    groups = given.get(2, "axis_index_groups")
    if groups is not None and not is_none(groups):
        return Fresh(Cause("a reduction over groups of devices", getattr(node, "lineno", 0)))
    if given.rest is None and is_mapped_axis(reader, axis):
        return Fresh()
    return reader.computed(node, given.get(0, "x"), axis, groups, given.rest)


def is_mapped_axis(reader: Calls, axis: Value | None) -> bool:
    """Returns whether a reduction is over the mapped axis."""
    if axis is None or reader.axis is None:
        return False
    if isinstance(axis, Items) and axis.cause is None and not axis.is_open:
        return any(is_mapped_axis(reader, each) for each in axis.items)
    if isinstance(axis, Literal) and reader.axis is not ...:
        return bool(axis.value == reader.axis)
    # A reduction must name an axis that is mapped, and there is no other.
    return not reader.program.has_other_axes


def _names_axis(reader: Calls, value: Value) -> bool:
    parts = value.items if isinstance(value, Items) else [value]
    return any(isinstance(each, Literal) and isinstance(each.value, str)
               and each.value == reader.axis for each in parts)  # fmt: skip


def _all_of(given: Given, *names: str) -> list[Value]:
    """Returns the arguments of these names, None for those that are not given."""
    several = (given.get(position, name) for position, name in enumerate(names))
    return [Literal(value=None) if each is None else each for each in several]


def _chosen(by: Value, held: Value) -> Value:
    """Returns a value that another one has chosen."""
    found = cause_of(by)
    return held if found is None else Value(found, (held,))


def _carried(
    body: Callable[[Value], tuple[Value, Value]], carry: Value, node: ast.AST
) -> tuple[Value, Value]:
    """Calls a body with what it gave before, until that is the same; returns the last result."""
    for _ in range(MOST_ROUNDS):
        result = body(carry)
        new = join(carry, result[0])
        if shape(new) == shape(carry):
            return new, result[1]
        carry = new
    raise NotFollowedError("a loop", getattr(node, "lineno", 0))


def _scan(reader: Calls, given: Given, node: ast.AST) -> Value:
    function, first, element = _all_of(given, "f", "init", "xs")
    if not isinstance(element, (Literal, Items)):
        element = any_of(element)

    def body(carry: Value) -> tuple[Value, Value]:
        result = reader.call(function, Given([carry, element]), node)
        return reader.part(result, 0, 2), reader.part(result, 1, 2)

    return Items(items=[*_carried(body, first, node)])


def _fori_loop(reader: Calls, given: Given, node: ast.AST) -> Value:
    lower, upper, function, first = _all_of(given, "lower", "upper", "body_fun", "init_val")
    index = Fresh(cause_of(lower, upper))

    def body(carry: Value) -> tuple[Value, Value]:
        return reader.call(function, Given([index, carry]), node), carry

    return _chosen(index, _carried(body, first, node)[0])


def _while_loop(reader: Calls, given: Given, node: ast.AST) -> Value:
    test, function, first = _all_of(given, "cond_fun", "body_fun", "init_val")

    def body(carry: Value) -> tuple[Value, Value]:
        tested = reader.call(test, Given([carry]), node)
        return reader.call(function, Given([carry]), node), tested

    carry, tested = _carried(body, first, node)
    return _chosen(tested, carry)


def _cond(reader: Calls, given: Given, node: ast.AST) -> Value | None:
    args = given.args
    if len(args) < 3 or given.keywords:
        return None
    results = [reader.call(branch, Given(args[3:]), node) for branch in args[1:3]]
    return _chosen(args[0], joined(results))


def _switch(reader: Calls, given: Given, node: ast.AST) -> Value | None:
    args = given.args
    if len(args) < 2 or not isinstance(args[1], Items) or given.keywords:
        return None
    results = [reader.call(branch, Given(args[2:]), node) for branch in args[1].items]
    return _chosen(args[0], joined(results))


def _reduce(reader: Calls, given: Given, node: ast.AST) -> Value | None:
    if len(given.args) < 2:
        return None
    leaf, initial = any_of(given.args[1]), given.get(2, "initializer")

    def body(carry: Value) -> tuple[Value, Value]:
        return reader.call(given.args[0], Given([carry, leaf]), node), carry

    first = leaf if initial is None else joined([leaf, initial])
    return _carried(body, first, node)[0]


def _map(reader: Calls, given: Given, node: ast.AST) -> Value | None:
    if len(given.args) != 2:
        return None
    return any_of(reader.call(given.args[0], Given([any_of(given.args[1])]), node))


_CONTROL = {
    "jax.lax.scan": _scan,
    "haiku.scan": _scan,
    "jax.lax.fori_loop": _fori_loop,
    "haiku.fori_loop": _fori_loop,
    "jax.lax.while_loop": _while_loop,
    "jax.lax.cond": _cond,
    "haiku.cond": _cond,
    "jax.lax.switch": _switch,
    "jax.lax.map": _map,
    "jax.tree.reduce": _reduce,
    "jax.tree_util.tree_reduce": _reduce,
    "jax.tree_reduce": _reduce,
    "functools.reduce": _reduce,
}
