"""Arguments to parameters, and values to the targets that unpack them."""

from __future__ import annotations

import ast
import dataclasses

from pmapx._src.analysis.frame import Arguments
from pmapx._src.analysis.values import (
    UNKNOWN,
    Confidence,
    Dict,
    Donated,
    Elements,
    Function,
    Instance,
    Items,
    NotATuple,
    Result,
    Stacked,
    Value,
    join,
    value,
)


def bind(function: Function, arguments: Arguments) -> dict[str, Value]:
    """Returns what each parameter holds; defaults count for those that are not given."""
    signature = function.node.args
    parameters = [parameter.arg for parameter in (*signature.posonlyargs, *signature.args)]
    bound: dict[str, Value] = dict.fromkeys(
        [*parameters, *(parameter.arg for parameter in signature.kwonlyargs)], UNKNOWN
    )
    bound.update(function.defaults)
    given = [_carried(held) for held in arguments.args]
    for name, held in zip(parameters, given, strict=False):
        bound[name] = held
    extra: list[tuple[str, Value]] = []
    for name, held in arguments.keywords.items():
        if name in bound:
            bound[name] = _carried(held)
        else:
            extra.append((name, _carried(held)))
    if signature.vararg is not None:
        rest = tuple(given[len(parameters) :])
        is_known = rest and not arguments.is_open
        bound[signature.vararg.arg] = value(Items(rest)) if is_known else UNKNOWN
    if signature.kwarg is not None:
        bound[signature.kwarg.arg] = value(Dict(tuple(sorted(extra, key=lambda kw: kw[0]))))
    return bound


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    """Returns all parameters of a function."""
    signature = node.args
    several = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs]
    return several + [each for each in (signature.vararg, signature.kwarg) if each is not None]


def self_name(function: Function) -> str:
    """Returns the name of the parameter that a method has its object, or its class, in."""
    signature = function.node.args
    positional = [*signature.posonlyargs, *signature.args]
    is_method = function.owner is not None and not has_decorator(function, "staticmethod")
    return positional[0].arg if positional and is_method else ""


def has_decorator(function: Function, name: str) -> bool:
    """Tells whether a function is decorated by a builtin such as ``staticmethod``."""
    decorators = getattr(function.node, "decorator_list", [])
    return any(isinstance(each, ast.Name) and each.id == name for each in decorators)


def bind_self(function: Function, bound: dict[str, Value]) -> None:
    """Gives a method that is read on its own an object of its class."""
    name = self_name(function)
    if name and function.owner is not None:
        is_class = has_decorator(function, "classmethod")
        bound[name] = value(function.owner if is_class else Instance(function.owner))


def _carried(held: Value) -> Value:
    """Drops what makes no difference inside, so that more calls share one reading."""
    return frozenset(fact for fact in held if not isinstance(fact, (Donated, Result, NotATuple)))


def unpacked(held: Value, count: int) -> list[Value]:
    """Returns what each of ``count`` targets gets.

    >>> unpacked(value(Items((UNKNOWN, value(NotATuple())))), 2)
    [frozenset(), frozenset({NotATuple()})]
    """
    parts = [UNKNOWN] * count
    for fact in held:
        if isinstance(fact, Items) and len(fact.items) == count:
            parts = [join(part, item) for part, item in zip(parts, fact.items, strict=True)]
        elif isinstance(fact, Stacked):
            # What is unpacked was a tuple, so its parts are the stacked values.
            row = dataclasses.replace(fact, doubt=Confidence.LOW)
            parts = [join(part, value(row)) for part in parts]
        elif isinstance(fact, Elements):
            parts = [join(part, fact.element) for part in parts]
    return parts
