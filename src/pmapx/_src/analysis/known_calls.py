"""The results of calls of known library functions: of JAX, Flax, functools and a few more."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable

from pmapx._src.analysis import known_names
from pmapx._src.analysis.facts import Indexing, Making
from pmapx._src.analysis.interpreter import mixed_devices
from pmapx._src.analysis.interpreter.frame import Arguments, Frame, call
from pmapx._src.analysis.interpreter.indexing import index_taken, iterate, record_shard
from pmapx._src.analysis.interpreter.lookup import attribute
from pmapx._src.analysis.values import (
    UNKNOWN,
    Confidence,
    Derivative,
    Dict,
    Elements,
    Gradient,
    Invariant,
    Items,
    Mapped,
    Mesh,
    Named,
    Partial,
    Place,
    Result,
    Sharded,
    Spec,
    Stacked,
    Value,
    constant,
    functions_in,
    integers,
    join,
    of_kind,
    value,
)

Handler = Callable[[Frame, str, Arguments, ast.expr], Value]


def call_named(frame: Frame, named: Named, arguments: Arguments, node: ast.expr) -> Value:
    """Returns what a call of an outside function gives."""
    handler = _HANDLERS.get(named.name)
    if handler is not None:
        return handler(frame, named.name, arguments, node)
    return _result(named.name)


@functools.cache
def _result(name: str) -> Value:
    return value(Result(name))


def leaves(known: Value) -> Value:
    """Returns what the leaves of a tree may be."""
    found: list[Value] = []
    for fact in known:
        if isinstance(fact, Stacked):
            found.append(value(dataclasses.replace(fact, doubt=Confidence.LOW)))
        elif isinstance(fact, Elements):
            found.append(leaves(fact.element))
        elif isinstance(fact, Items):
            found += [leaves(item) for item in fact.items]
        elif isinstance(fact, Dict):
            found += [leaves(item) for _, item in fact.items]
        elif isinstance(fact, (Gradient, Invariant)):
            found.append(value(fact))
    return join(*found)


def _pmap(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    if not arguments.has(0, "fun"):
        # A decorator with options only, as some wrappers write it.
        keywords = tuple(sorted(arguments.keywords.items(), key=lambda item: item[0]))
        return value(Partial(value(Named(name)), (), keywords, frame.module.place(node)))
    function = arguments.get(0, "fun")
    written = node.func if isinstance(node, ast.Call) else node
    through = frame.module.project.through
    site = through or frame.module.place(written)
    options = {key: held for key, held in arguments.keywords.items() if key != "fun"}
    if len(arguments.args) > 1:
        options["axis_name"] = arguments.args[1]
    mapped = Mapped(
        site,
        frame.module.place(node),
        function,
        options.get("in_axes", UNKNOWN),
        options.get("out_axes", UNKNOWN),
        integers(options.get("donate_argnums", UNKNOWN)),
    )
    if name in known_names.PMAP:
        making = Making(node, site, function, options)
        frame.module.facts.add_making(making)
        frame.module.facts.made[mapped] = making
    else:
        frame.module.project.other_pmaps.add(site)
    for inner in functions_in(function):
        frame.module.project.mark(inner, site)
    return value(mapped)


def _jit(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    if not arguments.has(0, "fun"):
        return value(Partial(value(Named(name)), (), (), frame.module.place(node)))
    function = arguments.get(0, "fun")
    # Sets have no order, and a report must not change from run to run.
    for mapped in sorted(of_kind(function, Mapped), key=lambda m: (m.site.path, m.site.line)):
        frame.module.facts.jitted_maps.setdefault(node, mapped)
    for inner in functions_in(function):
        frame.module.project.mark(inner, None)
    return function


def _same_callable(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    if name in ("functools.wraps", "functools.lru_cache") or not arguments.args:
        # What this returns is a decorator.
        return value(Named("pmapx.same"))
    return arguments.args[0]


def _partial(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    if not arguments.args:
        return UNKNOWN
    keywords = tuple(sorted(arguments.keywords.items(), key=lambda item: item[0]))
    place = frame.module.place(node)
    return value(Partial(arguments.args[0], tuple(arguments.args[1:]), keywords, place))


def _tree_map(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    function = arguments.get(0, "f")
    trees = [leaves(tree) for tree in arguments.args[1:]]
    if not trees and "tree" in arguments.keywords:
        trees = [leaves(arguments.keywords["tree"])]
    if not any(trees):
        if any(index_taken(inner.node) == 0 for inner in functions_in(function)):
            unknown = Stacked(
                "an unknown value", frame.module.place(node), Confidence.LOW, from_map=False
            )
            frame.module.facts.add_indexing(Indexing(node, unknown, "tree"))
        return value(Result(name))
    before = frame.tree_call
    frame.tree_call = before or (frame.module, node)
    try:
        return call(frame, function, Arguments(trees, {}, [None] * len(trees)), node)
    finally:
        frame.tree_call = before


def _tree_leaves(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    return value(Elements(leaves(arguments.get(0, "tree"))))


def _unreplicate(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    found = list(of_kind(leaves(arguments.get(0, "tree")), Stacked))
    place = frame.module.place(node)
    short = name.rpartition(".")[2]
    for stacked in found or [Stacked(short, place, Confidence.MEDIUM, from_map=False)]:
        frame.module.facts.add_indexing(Indexing(node, stacked, "call"))
    return UNKNOWN


def _choose(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    """jnp.take(x, 0, axis=0) and its like."""
    if isinstance(constant(arguments.get(1, "index")), int):
        axis = arguments.get(2, "axis")
        is_first = constant(axis) == 0 or not axis
        for stacked in of_kind(arguments.get(0, "operand"), Stacked):
            if is_first and stacked.doubt == Confidence.LOW:
                frame.module.facts.add_indexing(Indexing(node, stacked, "call"))
        return UNKNOWN
    return value(Result(name))


def _itemgetter(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    getter = value(Named("operator.itemgetter()"))
    place = frame.module.place(node)
    return value(Partial(getter, tuple(arguments.args[:1]), (), place))


def _get_item(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    first, second = arguments.get(0, "a"), arguments.get(1, "b")
    index, base = (first, second) if name.endswith("()") else (second, first)
    if isinstance(constant(index), int):
        for stacked in of_kind(base, Stacked):
            record_shard(frame, node, stacked)
    return UNKNOWN


def _next(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    elements = arguments.get(0, "iterator")
    for stacked in of_kind(elements, Stacked):
        doubtful = dataclasses.replace(stacked, confidence=Confidence.LOW)
        frame.module.facts.add_indexing(Indexing(node, doubtful, "call"))
    return join(*[fact.element for fact in of_kind(elements, Elements)])


def _replicate(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    short = name.rpartition(".")[2]
    return value(Stacked(short, frame.module.place(node), from_map=False))


def _prefetch(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    place = frame.module.place(node)
    batch = Stacked(name.rpartition(".")[2], place, doubt=Confidence.HIGH, from_map=False)
    return value(Elements(value(batch)))


def _identity(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    position = 1 if name == "typing.cast" else 0
    return arguments.get(position, "x") or value(Result(name))


def _as_list(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    """list(x) and tuple(x): of an array these are its slices, of a tree its parts."""
    held = arguments.get(0, "iterable")
    lists = frozenset(fact for fact in held if isinstance(fact, (Items, Elements)))
    if lists:
        return lists
    return value(Elements(iterate(held)))


def _zip(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    parts = tuple(map(iterate, arguments.args))
    if name == "builtins.enumerate":
        parts = (UNKNOWN, *parts[:1])
    return value(Elements(value(Items(parts))))


def _map(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    parts = list(map(iterate, arguments.args[1:]))
    inner = Arguments(parts, {}, [None] * len(parts))
    return value(Elements(call(frame, arguments.get(0, "func"), inner, node)))


def _getattr(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    wanted = constant(arguments.get(1, "name"))
    if not isinstance(wanted, str):
        return UNKNOWN
    base = arguments.get(0, "object")
    found = [attribute(frame, fact, wanted) for fact in base]
    return join(*found, arguments.get(2, "default"))


def _len(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    for result in of_kind(arguments.get(0, "obj"), Result):
        if result.of in known_names.DEVICES:
            local = "local_" if "local" in result.of else ""
            return value(Result(f"jax.{local}device_count"))
    return value(Result(name))


def _gradient(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    argnums = integers(arguments.get(1, "argnums")) or (0,)
    return value(
        Derivative(
            arguments.get(0, "fun"),
            argnums,
            has_value=name in known_names.VALUE_AND_GRADIENT,
            has_aux=constant(arguments.get(2, "has_aux")) is True,
        )
    )


def _reduce(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    axis = constant(arguments.get(1, "axis_name"))
    axes = set(axis) if isinstance(axis, tuple) else {axis}
    for gradient in of_kind(leaves(arguments.get(0, "x")), Gradient):
        is_varying = bool(axes & gradient.varying) or (axis is ... and gradient.varying)
        is_right = gradient.of_mean and name in known_names.MEAN_OVER_AXIS
        if not is_varying and not is_right:
            frame.module.facts.reductions[node] = gradient
    return value(Result(name))


def _forget(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    return UNKNOWN


def _mesh(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    short = name.rpartition(".")[2]
    return value(Mesh(frame.module.place(node), short, arguments.has(2, "axis_types")))


def _spec(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    axes: set[str] = set()
    for held in arguments.args:
        literal = constant(held)
        parts = literal if isinstance(literal, tuple) else (literal,)
        if ... in parts or arguments.is_open:
            return value(Spec(None))
        axes |= {str(part) for part in parts if part is not None}
    return value(Spec(None if arguments.is_open else frozenset(axes)))


def _shard_map(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    if not arguments.has(0, "f"):
        keywords = tuple(sorted(arguments.keywords.items(), key=lambda item: item[0]))
        return value(Partial(value(Named(name)), (), keywords, frame.module.place(node)))
    place = frame.module.place(node)
    specs = arguments.get(2, "in_specs")
    if arguments.has(2, "in_specs"):
        for mesh in of_kind(arguments.get(1, "mesh"), Mesh):
            frame.module.project.meshes_mapped[mesh] = place
    checks = arguments.get(4, "check_vma") or arguments.keywords.get("check_rep", UNKNOWN)
    is_checked = constant(checks) is True or not (
        arguments.has(4, "check_vma") or "check_rep" in arguments.keywords
    )
    function = arguments.get(0, "f")
    if is_checked:
        # One spec stands for all arguments, however many there are.
        count = max((len(f.node.args.args) for f in functions_in(function)), default=0)
        seeded = [_invariant(spec, place) for spec in _specs(specs, count)]
        call(frame, function, Arguments(seeded, {}, [None] * len(seeded)), node)
    return value(Sharded(place, function))


def _specs(specs: Value, count: int) -> list[Value]:
    for fact in specs:
        if isinstance(fact, Items):
            return list(fact.items)
        if isinstance(fact, Spec):
            return [value(fact)] * count
    return [UNKNOWN] * count


def _invariant(spec: Value, place: Place) -> Value:
    axes = [fact.axes for fact in spec if isinstance(fact, Spec)]
    if len(axes) == 1 and axes[0] is not None:
        return value(Invariant(axes[0], place))
    return UNKNOWN


def _arange(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    return value(Elements(value(Result("jax.numpy.arange[]"))), Result(name))


_HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(known_names.PMAP | known_names.OTHER_PMAPS, _pmap),
    **dict.fromkeys(known_names.JIT, _jit),
    **dict.fromkeys(known_names.SAME_CALLABLE, _same_callable),
    **dict.fromkeys(known_names.PARTIAL, _partial),
    **dict.fromkeys(known_names.TREE_MAP, _tree_map),
    **dict.fromkeys(known_names.TREE_LEAVES, _tree_leaves),
    **dict.fromkeys(known_names.UNREPLICATE, _unreplicate),
    **dict.fromkeys(known_names.REPLICATE | known_names.SHARD, _replicate),
    **dict.fromkeys(known_names.PREFETCH, _prefetch),
    **dict.fromkeys(known_names.IDENTITY, _identity),
    **dict.fromkeys(known_names.GRADIENT | known_names.VALUE_AND_GRADIENT, _gradient),
    **dict.fromkeys(known_names.MEAN_OVER_AXIS | known_names.SUM_OVER_AXIS, _reduce),
    **dict.fromkeys(known_names.MADE_VARYING, _forget),
    **dict.fromkeys(known_names.MESH, _mesh),
    **dict.fromkeys(known_names.SPEC, _spec),
    **dict.fromkeys(known_names.SHARD_MAP, _shard_map),
    "jax.device_put_replicated": _replicate,
    "jax.device_put_sharded": _replicate,
    "jax.device_put": mixed_devices.device_put,
    "jax.device_get": _forget,
    "jax.numpy.arange": _arange,
    "jax.numpy.take": _choose,
    "jax.lax.index_in_dim": _choose,
    "jax.lax.dynamic_index_in_dim": _choose,
    "operator.itemgetter": _itemgetter,
    "operator.itemgetter()": _get_item,
    "operator.getitem": _get_item,
    "builtins.next": _next,
    "builtins.list": _as_list,
    "builtins.tuple": _as_list,
    "builtins.zip": _zip,
    "builtins.enumerate": _zip,
    "builtins.map": _map,
    "builtins.getattr": _getattr,
    "builtins.len": _len,
    "builtins.reversed": _identity,
    "builtins.sorted": _identity,
    "pmapx.same": _identity,
}
