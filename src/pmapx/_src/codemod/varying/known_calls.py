"""What functions from outside the program do with values that vary."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from pmapx._src.analysis import known_names
from pmapx._src.codemod.varying.bodies import MOST_ROUNDS, Frame
from pmapx._src.codemod.varying.expressions import any_of
from pmapx._src.codemod.varying.values import (
    Cause,
    Fresh,
    Gradient,
    Items,
    Library,
    Literal,
    NotFollowedError,
    Partial,
    Table,
    Value,
    cause_of,
    join,
    joined,
    shape,
)

if TYPE_CHECKING:
    from pmapx._src.codemod.varying.calls import Calls

Keywords = dict[str, Value]
# What DynamicScale.value_and_grad(f, axis_name=...) returns.
SCALED_GRADIENT = "flax.training.dynamic_scale.DynamicScale.value_and_grad()"
_REDUCTIONS = frozenset(
    {
        *(f"jax.lax.{name}" for name in ("pmean", "psum", "pmax", "pmin", "all_gather")),
        "kfac_jax.utils.pmean_if_pmap", "kfac_jax.utils.psum_if_pmap",
    }
)  # fmt: skip
# By the last part of the name, wherever they are imported from.
_DIFFERING = frozenset(
    {
        "axis_index", "ppermute", "pshuffle", "pswapaxes", "all_to_all", "psum_scatter",
        "ragged_all_to_all", "pure_callback", "io_callback", "call", "id_tap", "process_index",
        "host_id", "urandom", "time", "time_ns", "perf_counter", "monotonic", "uuid4", "getpid",
        "gethostname", "input", "pcast", "pvary", "pbroadcast",
    }
)  # fmt: skip
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
        "jax.jit", "jax.named_call", "jax.ad_checkpoint.checkpoint", "flax.linen.jit",
        "flax.linen.remat", "haiku.remat", "haiku.jit", "kfac_jax.utils.wrap_if_pmap",
        "jax.experimental.checkify.checkify", "chex.chexify",
        "equinox.filter_vmap", "haiku.vmap", "jax.vmap", "chex.assert_max_traces",
    }
)  # fmt: skip
_UNLIKE = frozenset({"jax.experimental.checkify.checkify", "chex.chexify"})
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


def call(
    reader: Calls,
    frame: Frame,
    name: str,
    args: list[Value],
    keywords: Keywords,
    rest: Value | None,
    node: ast.AST,
) -> Value:
    """Returns what a call of an outside function gives."""
    line = getattr(node, "lineno", 0)
    leaf = name.rpartition(".")[2]
    given = [*args, *keywords.values(), *([rest] if rest is not None else ())]
    if name in _REDUCTIONS:
        return _reduced(reader, args, keywords, rest, node)
    if name in _REFUSED:
        raise NotFollowedError(f"{leaf}(...)", line)
    if (leaf in _DIFFERING and name.startswith(("jax", "time", "os", "uuid", "builtins"))) or (
        name.startswith(_DIFFERING_MODULES)
    ):
        return Fresh(Cause(f"{leaf}(...)", line))
    if name in _LOOKING:
        return Fresh()
    if name == SCALED_GRADIENT:
        # The scale, whether all gradients are finite, the value, and the gradients.
        value = reader.call(frame, args[0], args[1:], keywords, rest, node)
        return Items(items=[Fresh(), Fresh(), value, Fresh()])
    if rest is None:
        found = _known(reader, frame, name, args, keywords, node)
        if found is not None:
            return found
    if name.startswith(_CUSTOM) and reader.differing.is_any:
        return Fresh(Cause(f"{leaf}(...)", line))
    if any(_names_axis(reader, each) for each in given) and not _is_norm(leaf):
        return Fresh(Cause(f"{leaf}(...), which is given the mapped axis", line))
    return reader.outcome(frame, given, node)


def _is_norm(leaf: str) -> bool:
    """Returns whether a layer uses the axis only to reduce over it."""
    return "Norm" in leaf or "ExponentialMovingAverage" in leaf


def _known(
    reader: Calls,
    frame: Frame,
    name: str,
    args: list[Value],
    keywords: Keywords,
    node: ast.AST,
) -> Value | None:
    """Returns what a function of which more is known gives; None for all others."""
    first = args[0] if args else None
    if name in known_names.PARTIAL and first is not None:
        return Partial(function=first, args=args[1:], keywords=keywords)
    if name in _SAME_FUNCTION - _UNLIKE:
        _refuse_same_axis(reader, keywords, node)
        return first if first is not None else Partial(function=Library(name=name), keywords={})
    if name == "functools.wraps":
        return Library(name="jax.named_call")
    if name in known_names.GRADIENT | known_names.VALUE_AND_GRADIENT and first is not None:
        aux = args[2] if len(args) > 2 else keywords.get("has_aux", Literal(value=False))
        has_aux = bool(aux.value) if isinstance(aux, Literal) else None
        has_value = name in known_names.VALUE_AND_GRADIENT
        return Gradient(function=first, has_value=has_value, has_aux=has_aux)
    if name in known_names.TREE_MAP and len(args) > 1:
        leaves = [any_of(tree) for tree in args[1:]]
        return any_of(reader.call(frame, args[0], leaves, {}, None, node))
    if name in known_names.IDENTITY - {"builtins.dict", "builtins.iter"} and first is not None:
        return args[1] if name == "typing.cast" and len(args) > 1 else first
    if name in known_names.DICTS and not args:
        return Table(items=dict(keywords))
    if name in ("builtins.tuple", "builtins.list") and isinstance(first, Items):
        return Items(first.cause, (first,), list(first.items), first.nodes, first.is_open)
    if name == "builtins.getattr" and len(args) >= 2 and isinstance(args[1], Literal):
        found = reader.attribute(frame, args[0], str(args[1].value), node)
        return joined([found, *args[2:]])
    control = _CONTROL.get(name)
    return None if control is None else control(reader, frame, args, keywords, node)


def _refuse_same_axis(reader: Calls, keywords: Keywords, node: ast.AST) -> None:
    for name in ("axis_name", "spmd_axis_name"):
        held = keywords.get(name)
        is_other = (
            isinstance(held, Literal) and reader.axis is not ... and (held.value != reader.axis)
        )
        if held is not None and not is_other:
            raise NotFollowedError("an inner axis", getattr(node, "lineno", 0))


def _reduced(
    reader: Calls, args: list[Value], keywords: Keywords, rest: Value | None, node: ast.AST
) -> Value:
    """A reduction over the mapped axis is equal on all devices; over another, it is not."""
    data = args[0] if args else keywords.get("x", rest)
    axis = args[1] if len(args) > 1 else keywords.get("axis_name", rest)
    groups = keywords.get("axis_index_groups", args[2] if len(args) > 2 else None)
    is_grouped = groups is not None and not (isinstance(groups, Literal) and groups.value is None)
    if is_grouped:
        return Fresh(Cause("a reduction over groups of devices", getattr(node, "lineno", 0)))
    if rest is None and is_mapped_axis(reader, axis):
        return Fresh()
    return reader.computed(node, data, axis, groups, rest)


def is_mapped_axis(reader: Calls, axis: Value | None) -> bool:
    """Returns whether a reduction is over the mapped axis."""
    if axis is None or reader.axis is None:
        return False
    if isinstance(axis, Items) and axis.cause is None and not axis.is_open:
        return any(is_mapped_axis(reader, each) for each in axis.items)
    if isinstance(axis, Literal) and reader.axis is not ...:
        return bool(axis.value == reader.axis)
    # A reduction must name an axis that is mapped, and there is no other.
    return not reader.has_other_axes


def _names_axis(reader: Calls, value: Value) -> bool:
    parts = value.items if isinstance(value, Items) else [value]
    return any(isinstance(each, Literal) and isinstance(each.value, str)
               and each.value == reader.axis for each in parts)  # fmt: skip


def _argument(args: list[Value], keywords: Keywords, position: int, name: str) -> Value:
    if position < len(args):
        return args[position]
    return keywords.get(name, Literal(value=None))


def _carried(
    reader: Calls, frame: Frame, body: Any, carry: Value, node: ast.AST
) -> tuple[Value, Value]:
    """Calls a body with what it gave before, until that is the same; returns the last result."""
    for _ in range(MOST_ROUNDS):
        result = body(carry)
        new = join(carry, result[0])
        if shape(new) == shape(carry):
            return new, result[1]
        carry = new
    raise NotFollowedError("a loop", getattr(node, "lineno", 0))


def _scan(
    reader: Calls, frame: Frame, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    function = _argument(args, keywords, 0, "f")
    first = _argument(args, keywords, 1, "init")
    element = _argument(args, keywords, 2, "xs")
    if not isinstance(element, Literal):
        element = any_of(element) if not isinstance(element, Items) else element

    def body(carry: Value) -> tuple[Value, Value]:
        result = reader.call(frame, function, [carry, element], {}, None, node)
        return reader.part(result, 0, 2), reader.part(result, 1, 2)

    carry, stacked = _carried(reader, frame, body, first, node)
    return Items(items=[carry, stacked])


def _fori_loop(
    reader: Calls, frame: Frame, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    bounds = cause_of(*(_argument(args, keywords, i, n) for i, n in enumerate(("lower", "upper"))))
    function = _argument(args, keywords, 2, "body_fun")

    def body(carry: Value) -> tuple[Value, Value]:
        return reader.call(frame, function, [Fresh(bounds), carry], {}, None, node), carry

    carry, _ = _carried(reader, frame, body, _argument(args, keywords, 3, "init_val"), node)
    return carry if bounds is None else Value(bounds, (carry,))


def _while_loop(
    reader: Calls, frame: Frame, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    test, function = (
        _argument(args, keywords, i, n) for i, n in ((0, "cond_fun"), (1, "body_fun"))
    )

    def body(carry: Value) -> tuple[Value, Value]:
        tested = reader.call(frame, test, [carry], {}, None, node)
        return reader.call(frame, function, [carry], {}, None, node), tested

    carry, tested = _carried(reader, frame, body, _argument(args, keywords, 2, "init_val"), node)
    found = cause_of(tested)
    return carry if found is None else Value(found, (carry,))


def _cond(
    reader: Calls, frame: Frame, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value | None:
    if len(args) < 3 or keywords:
        return None
    chosen = cause_of(args[0])
    operands = args[3:]
    results = [reader.call(frame, branch, operands, {}, None, node) for branch in args[1:3]]
    held = joined(results)
    return held if chosen is None else Value(chosen, (held,))


def _switch(
    reader: Calls, frame: Frame, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value | None:
    if len(args) < 2 or not isinstance(args[1], Items) or keywords:
        return None
    branches = args[1].items
    held = joined(reader.call(frame, each, args[2:], {}, None, node) for each in branches)
    chosen = cause_of(args[0])
    return held if chosen is None else Value(chosen, (held,))


def _reduce(
    reader: Calls, frame: Frame, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value | None:
    if len(args) < 2:
        return None
    leaf = any_of(args[1])
    first = joined([leaf, *args[2:3], *(keywords[k] for k in ("initializer",) if k in keywords)])

    def body(carry: Value) -> tuple[Value, Value]:
        return reader.call(frame, args[0], [carry, leaf], {}, None, node), carry

    return _carried(reader, frame, body, first, node)[0]


def _map(
    reader: Calls, frame: Frame, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value | None:
    if len(args) != 2:
        return None
    return any_of(reader.call(frame, args[0], [any_of(args[1])], {}, None, node))


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
