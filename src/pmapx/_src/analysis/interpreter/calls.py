"""The result of a call, by what is called."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.facts import Invocation
from pmapx._src.analysis.interpreter.frame import Arguments, Caller, Frame, call
from pmapx._src.analysis.interpreter.functions import call_function
from pmapx._src.analysis.interpreter.indexing import of_key
from pmapx._src.analysis.interpreter.lookup import attribute, dotted
from pmapx._src.analysis.values import (
    UNKNOWN,
    Bound,
    Class,
    Confidence,
    Const,
    Derivative,
    Dict,
    Donated,
    Elements,
    Fact,
    Function,
    Gradient,
    Instance,
    Invariant,
    Items,
    Lowered,
    Mapped,
    Method,
    Named,
    NotATuple,
    Partial,
    Place,
    Result,
    Sharded,
    Stacked,
    Value,
    constant,
    join,
    value,
)


def _call_bound(frame: Frame, bound: Bound, arguments: Arguments, node: ast.expr) -> Value:
    return call_function(frame, bound.function, arguments.after([value(bound.owner)], ()))


def _call_partial(frame: Frame, partial: Partial, arguments: Arguments, node: ast.expr) -> Value:
    together = arguments.after(partial.args, partial.keywords)
    # While a partial is applied, the place where it was written is the site.
    project = frame.module.project
    before = project.through
    project.through = before or partial.place
    try:
        return call(frame, partial.function, together, node)
    finally:
        project.through = before


def _make_instance(frame: Frame, cls: Class, arguments: Arguments, node: ast.expr) -> Value:
    init = attribute(frame, cls, "__init__")
    instance = Instance(cls)
    for fact in init:
        if isinstance(fact, Function):
            _call_bound(frame, Bound(fact, instance), arguments, node)
    for name, held in arguments.keywords.items():
        if not init:
            # A dataclass or NamedTuple: its fields are the keywords.
            cls.module.set_attribute(frame, cls, name, held)
    stacked = [
        fact
        for held in (*arguments.args, *arguments.keywords.values())
        for fact in held
        if isinstance(fact, Stacked)
    ]
    if stacked and not init:
        return value(dataclasses.replace(stacked[0], doubt=Confidence.LOW))
    return value(instance)


def _call_mapped(frame: Frame, mapped: Mapped, arguments: Arguments, node: ast.expr) -> Value:
    """Returns what a pmapped function gives: its result with an axis of devices in front."""
    module = frame.module
    module.facts.add_invocation(
        Invocation(node, mapped, frame.env.is_under_jit, frame.env.is_under_map)
    )
    _donate(frame, mapped, arguments, node)
    inner = _result_shape(frame, mapped.function)
    place = module.place(node)
    return _stack(inner, mapped.out_axes, _name_of(mapped), place)


def _name_of(mapped: Mapped) -> str:
    found = {name for name in _names(mapped.function) if name != "<lambda>"}
    return f"the pmapped {min(found)}" if found else "a pmapped function"


def _names(known_as: Value) -> Iterator[str]:
    for fact in known_as:
        if isinstance(fact, Function):
            yield fact.name
        elif isinstance(fact, Bound):
            yield fact.function.name
        elif isinstance(fact, Partial):
            yield from _names(fact.function)


def _stack(
    inner: Value,
    out_axes: Value,
    origin: str,
    place: Place,
    doubt: Confidence = Confidence.HIGH,
) -> Value:
    axes = constant(out_axes)
    if axes is None:
        return inner
    tuples = [fact for fact in inner if isinstance(fact, Items) and fact.is_tuple]
    stacked: list[Value] = []
    for fact in tuples:
        is_listed = isinstance(axes, tuple) and len(axes) == len(fact.items)
        parts = []
        for position, item in enumerate(fact.items):
            axis = axes[position] if is_listed else axes
            own = value(Const(axis)) if axis is not ... else UNKNOWN
            parts.append(_stack(item, own, origin, place, Confidence.MEDIUM))
        stacked.append(value(Items(tuple(parts))))
    if stacked and len(tuples) == len(inner):
        return join(*stacked)
    confidence = Confidence.MEDIUM if axes is ... and out_axes else Confidence.HIGH
    is_known = any(
        isinstance(fact, (NotATuple, Dict, Instance, Stacked))
        or (isinstance(fact, Result) and known_names.is_array_function(fact.of))
        for fact in inner
    )
    entire = Stacked(origin, place, confidence, Confidence.LOW if is_known else doubt)
    return join(value(entire), *stacked)


def _donate(frame: Frame, mapped: Mapped, arguments: Arguments, node: ast.expr) -> None:
    if arguments.is_open:
        return
    place = frame.module.place(node)
    for position in mapped.donated:
        if not 0 <= position < len(arguments.nodes):
            continue
        argument = arguments.nodes[position]
        path = dotted(argument) if argument is not None else None
        if path is None:
            continue
        found = frame.env.find(path)
        held = found or UNKNOWN
        # A name of an enclosing scope may be bound anew there at any time.
        if found is None or path in frame.env.names or "." in path:
            kept = frozenset(fact for fact in held if not isinstance(fact, Donated))
            frame.env.set_path(path, join(kept, value(Donated(place, position))))


def _derivative_result(derivative: Derivative, result: Value, arguments: Arguments) -> Value:
    loss = result
    if derivative.has_aux:
        loss = join(*[f.items[0] for f in result if isinstance(f, Items) and f.items])
    of_mean = any(
        isinstance(fact, Result) and fact.of in known_names.MEAN_OVER_AXIS for fact in loss
    )
    gradients: list[Value] = []
    for position in derivative.argnums:
        held = arguments.args[position] if position < len(arguments.args) else UNKNOWN
        gradients.append(
            frozenset(
                Gradient(fact.varying, fact.shard_map, of_mean)
                for fact in held
                if isinstance(fact, Invariant)
            )
        )
    gradient = gradients[0] if len(gradients) == 1 else value(Items(tuple(gradients)))
    if len(gradients) == 1 and not gradient:
        gradient = value(NotATuple())
    if not derivative.has_value and not derivative.has_aux:
        return gradient
    if not derivative.has_value:
        return value(Items((gradient, UNKNOWN)))
    aux = value(Items((value(NotATuple()), UNKNOWN)))
    first = aux if derivative.has_aux else value(NotATuple())
    return value(Items((first, gradient)))


def _call_method(frame: Frame, method: Method, arguments: Arguments, node: ast.expr) -> Value:
    owner, name = method.owner, method.name
    if isinstance(owner, Mapped):
        if name in ("lower", "trace"):
            return value(Lowered(owner))
        return UNKNOWN
    if isinstance(owner, Lowered):
        if name == "compile":
            frame.module.facts.lowerings[node] = owner.mapped.site
            return value(owner.mapped)
        return value(owner) if name in ("lower", "trace") else UNKNOWN
    if isinstance(owner, Stacked):
        return _call_tree_method(owner, name)
    if isinstance(owner, Elements):
        return _call_list_method(frame, owner, name, arguments, node)
    if isinstance(owner, Items) and name == "append":
        elements = Elements(join(*owner.items))
        return _call_list_method(frame, elements, name, arguments, node)
    if isinstance(owner, Dict):
        return _call_dict_method(owner, name, arguments)
    return UNKNOWN


def _call_tree_method(stacked: Stacked, name: str) -> Value:
    if name == "items":
        return value(Elements(value(Items((UNKNOWN, value(stacked))))))
    if name == "values":
        return value(Elements(value(stacked)))
    return value(stacked) if name in known_names.TREE_METHODS else UNKNOWN


def _call_list_method(
    frame: Frame, elements: Elements, name: str, arguments: Arguments, node: ast.expr
) -> Value:
    if name in ("append", "add", "insert") and arguments.args and isinstance(node, ast.Call):
        path = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if path is not None:
            grown = value(Elements(join(elements.element, arguments.args[-1])))
            frame.env.set_path(path, grown)
        return UNKNOWN
    return elements.element if name == "pop" else UNKNOWN


def _call_dict_method(mapping: Dict, name: str, arguments: Arguments) -> Value:
    if name == "items":
        return value(Elements(value(Items((UNKNOWN, join(*[v for _, v in mapping.items]))))))
    if name == "values":
        return value(Elements(join(*[held for _, held in mapping.items])))
    if name in ("get", "pop"):
        return of_key(mapping, constant(arguments.get(0, "key")))
    return value(mapping) if name == "copy" else UNKNOWN


def _result_shape(frame: Frame, function: Value) -> Value:
    """Returns what a function gives for arguments of which nothing is known."""
    results = []
    for fact in function:
        if isinstance(fact, (Function, Bound, Partial, Derivative, Mapped)):
            results.append(_call_shape(frame, fact))
        elif isinstance(fact, Named) and known_names.is_array_function(fact.name):
            results.append(value(NotATuple()))
    return join(*results)


def _call_shape(frame: Frame, fact: Function | Bound | Partial | Derivative | Mapped) -> Value:
    if isinstance(fact, Function):
        return call_function(frame, fact, Arguments([], {}))
    if isinstance(fact, Bound):
        return call_function(frame, fact.function, Arguments([value(fact.owner)], {}, [None]))
    if isinstance(fact, Derivative):
        return _derivative_result(fact, UNKNOWN, Arguments([], {}))
    return _result_shape(frame, fact.function)


def _call_derivative(
    frame: Frame, derivative: Derivative, arguments: Arguments, node: ast.expr
) -> Value:
    result = call(frame, derivative.function, arguments, node)
    return _derivative_result(derivative, result, arguments)


def _call_sharded(frame: Frame, sharded: Sharded, arguments: Arguments, node: ast.expr) -> Value:
    return value(NotATuple())


def _call_instance(frame: Frame, instance: Instance, arguments: Arguments, node: ast.expr) -> Value:
    return call(frame, attribute(frame, instance, "__call__"), arguments, node)


CALLERS: dict[type[Fact], Caller] = {
    Function: call_function,
    Bound: _call_bound,
    Partial: _call_partial,
    Class: _make_instance,
    Mapped: _call_mapped,
    Method: _call_method,
    Derivative: _call_derivative,
    Sharded: _call_sharded,
    Instance: _call_instance,
}
