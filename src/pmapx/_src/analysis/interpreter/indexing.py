"""What an index, a loop or an item assignment does to a value."""

from __future__ import annotations

import ast
import dataclasses

from pmapx._src.analysis import known_names
from pmapx._src.analysis.facts import Indexing
from pmapx._src.analysis.interpreter.frame import Frame, evaluate
from pmapx._src.analysis.interpreter.lookup import dotted
from pmapx._src.analysis.values import (
    UNKNOWN,
    Confidence,
    Dict,
    Elements,
    Fact,
    Function,
    Gradient,
    Items,
    Mapped,
    Named,
    Result,
    Stacked,
    Value,
    constant,
    join,
    value,
)


def iterate(iterated: Value) -> Value:
    """Returns what a loop's variable holds."""
    element = UNKNOWN
    for fact in iterated:
        if isinstance(fact, Items):
            element = join(element, *fact.items)
        elif isinstance(fact, Elements):
            element = join(element, fact.element)
        elif isinstance(fact, Stacked):
            # Shards of an array, or parts of a tuple: it is not known which.
            doubtful = dataclasses.replace(fact, confidence=Confidence.LOW)
            element = join(element, value(doubtful))
    return element


def store_item(frame: Frame, container: ast.expr, index: Value, held: Value) -> None:
    """Takes note that ``container[index] = held``."""
    before = evaluate(frame, container, is_quiet=True)
    path = dotted(container)
    kept = frozenset(fact for fact in held if isinstance(fact, (Stacked, Mapped)))
    # What a library names is not a container that the program made.
    if path is None or not kept or any(isinstance(fact, Named) for fact in before):
        return
    lists = [fact for fact in before if isinstance(fact, (Items, Elements))]
    if isinstance(constant(index), str) and not lists:
        # A dict with stacked leaves is itself a stacked tree.
        frame.env.set_path(path, join(before, kept))
    else:
        parts = [iterate(value(fact)) for fact in lists]
        others = frozenset(fact for fact in before if fact not in lists)
        frame.env.set_path(path, join(others, value(Elements(join(kept, *parts)))))


def subscript(frame: Frame, node: ast.Subscript, is_quiet: bool) -> Value:
    base = evaluate(frame, node.value, is_quiet=is_quiet)
    index = evaluate(frame, node.slice)
    return join(*[_item(frame, fact, node, index) for fact in base])


def _item(frame: Frame, fact: Fact, node: ast.Subscript, index: Value) -> Value:
    chosen = constant(index)
    if isinstance(fact, Items):
        if isinstance(chosen, int) and -len(fact.items) <= chosen < len(fact.items):
            return fact.items[chosen]
        return UNKNOWN if isinstance(node.slice, ast.Slice) else join(*fact.items)
    if isinstance(fact, Elements):
        return value(fact) if isinstance(node.slice, ast.Slice) else fact.element
    if isinstance(fact, Dict):
        return of_key(fact, chosen)
    if isinstance(fact, Stacked):
        return _shard(frame, fact, node, chosen, index)
    if isinstance(fact, Gradient):
        return value(fact)
    if isinstance(fact, Result) and fact.of in known_names.DEVICES and type(chosen) is int:
        return value(Result(f"{fact.of}[]"))
    return UNKNOWN


def of_key(mapping: Dict, key: object) -> Value:
    """Returns what a dict holds; for a key in a variable, any of its functions or of its maps.

    >>> of_key(Dict((("a", value(Named("jax.jit"))),), False), "a")
    frozenset({Named(name='jax.jit')})
    """
    if isinstance(key, str):
        return dict(mapping.items).get(key, UNKNOWN)
    if mapping.is_open:
        return UNKNOWN
    held = [held for _, held in mapping.items]
    if all(each and all(isinstance(f, Function) for f in each) for each in held):
        return join(*held)
    return frozenset(f for f in join(*held) if isinstance(f, Mapped))


def _shard(
    frame: Frame, stacked: Stacked, node: ast.Subscript, chosen: object, index: Value
) -> Value:
    if isinstance(chosen, str):
        return value(dataclasses.replace(stacked, doubt=Confidence.LOW))
    first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else None
    if first is not None:
        chosen = _literal(first)
    if isinstance(chosen, int) and not isinstance(chosen, bool):
        if first is None and _is_used_as_object(frame, node):
            return value(dataclasses.replace(stacked, doubt=Confidence.LOW))
        # The more an index may choose from a tuple, the less sure it is to take a shard.
        sure = Confidence(Confidence.HIGH + 1 - (stacked.doubt if first is None else 1))
        seen = dataclasses.replace(stacked, confidence=min(stacked.confidence, sure))
        record_shard(frame, node, seen)
        if stacked.doubt > Confidence.LOW:
            part = dataclasses.replace(stacked, confidence=Confidence.LOW, doubt=Confidence.LOW)
            return value(part)
        return UNKNOWN
    if isinstance(node.slice, (ast.Slice, ast.Tuple)):
        return UNKNOWN
    if value(Result("jax.numpy.arange[]")) <= index:
        frame.module.facts.add_indexing(Indexing(node, stacked, "arange"))
    # A key or an index: what is chosen by a variable may still be a stacked leaf.
    return value(dataclasses.replace(stacked, confidence=Confidence.LOW))


def _is_used_as_object(frame: Frame, node: ast.Subscript) -> bool:
    """``state[0].count`` and ``state[0]["w"]`` choose from a tuple: a shard has no such parts."""
    parent = frame.module.parent(node)
    if isinstance(parent, ast.Attribute):
        return parent.attr not in known_names.ARRAY_ATTRIBUTES
    return isinstance(parent, ast.Subscript) and isinstance(_literal(parent.slice), str)


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ...


def index_taken(function: ast.AST) -> int | None:
    """Returns the index of ``lambda x: x[0]``, however it is spelled; None of other functions."""
    body = getattr(function, "body", None)
    if isinstance(body, list) and len(body) == 1 and isinstance(body[0], ast.Return):
        body = body[0].value
    arguments = getattr(function, "args", None)
    if arguments is None or len(arguments.args) != 1:
        return None
    if _is_first_shard(body, arguments.args[0].arg):
        return 0
    if not isinstance(body, ast.Subscript):
        return None
    is_of_parameter = isinstance(body.value, ast.Name) and body.value.id == arguments.args[0].arg
    index = body.slice.value if isinstance(body.slice, ast.Constant) else None
    return index if is_of_parameter and type(index) is int else None


def _is_first_shard(body: ast.AST | None, name: str) -> bool:
    """Returns whether it is ``x.addressable_shards[0].data``, without the axis of the shard."""
    if isinstance(body, ast.Call) and isinstance(body.func, ast.Attribute):
        given = [*body.args, *(keyword.value for keyword in body.keywords)]
        is_first = len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value == 0
        data = body.func.value if body.func.attr == "squeeze" and is_first else None
    elif isinstance(body, ast.Subscript):
        is_first = isinstance(body.slice, ast.Constant) and body.slice.value == 0
        data = body.value if is_first else None
    else:
        data = None
    return data is not None and ast.unparse(data) == f"{name}.addressable_shards[0].data"


def record_shard(frame: Frame, node: ast.AST, stacked: Stacked) -> None:
    """Notes that one shard of a stacked value is taken, at the tree_map that does it if any."""
    if frame.tree_call is not None:
        module, call = frame.tree_call
        module.facts.add_indexing(Indexing(call, stacked, "tree"))
    else:
        frame.module.facts.add_indexing(Indexing(node, stacked, "index"))
