"""Functions that are defined and called: arguments to parameters, and what the body returns."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pmapx._src.analysis import syntax
from pmapx._src.analysis.interpreter import frame as interpreter
from pmapx._src.analysis.interpreter.frame import Arguments, Frame
from pmapx._src.analysis.scopes import Environment
from pmapx._src.analysis.values import (
    UNKNOWN,
    Class,
    Const,
    Dict,
    Donated,
    Elements,
    Function,
    Instance,
    Items,
    NotATuple,
    Result,
    Value,
    value,
)

Held = TypeVar("Held")
DEEPEST = 12

# Readings of one function with different arguments.
MOST_READINGS = 12
_DROPPED = frozenset({Donated, Result, NotATuple})


def match_arguments(
    signature: ast.arguments, args: Sequence[Held], keywords: Mapping[str, Held]
) -> tuple[dict[str, Held], list[Held], dict[str, Held]]:
    """Returns what each parameter is given, and what is left for ``*args`` and ``**kwargs``."""
    names = syntax.defaults(signature)
    count = len(names) - len(signature.kwonlyargs)
    given = dict(zip(names, args[:count], strict=False))
    extra: dict[str, Held] = {}
    for name, held in keywords.items():
        (given if name in names else extra)[name] = held
    return given, list(args[count:]), extra


def bind(function: Function, arguments: Arguments) -> dict[str, Value]:
    """Returns what each parameter holds; defaults count for those that are not given."""
    signature = function.node.args
    given, rest, extra = match_arguments(
        signature,
        [_carried(held) for held in arguments.args],
        {name: _carried(held) for name, held in arguments.keywords.items()},
    )
    bound: dict[str, Value] = dict.fromkeys(syntax.defaults(signature), UNKNOWN)
    bound.update(function.defaults)
    bound.update(given)
    if signature.vararg is not None:
        is_known = rest and not arguments.is_open
        bound[signature.vararg.arg] = value(Items(tuple(rest))) if is_known else UNKNOWN
    if signature.kwarg is not None:
        bound[signature.kwarg.arg] = value(Dict(tuple(sorted(extra.items()))))
    return bound


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    signature = node.args
    several = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs]
    return several + [each for each in (signature.vararg, signature.kwarg) if each is not None]


def self_name(function: Function) -> str:
    """Returns the name of the parameter that a method has its object, or its class, in."""
    positional = function.node.args.posonlyargs or function.node.args.args
    is_method = function.owner is not None and not has_decorator(function, "staticmethod")
    return positional[0].arg if positional and is_method else ""


def has_decorator(function: Function, name: str) -> bool:
    """Returns whether a function is decorated by a builtin such as ``staticmethod``."""
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
    for fact in held:
        if type(fact) in _DROPPED:
            return frozenset(fact for fact in held if type(fact) not in _DROPPED)
    return held


def make_function(
    frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
) -> Function:
    """Returns the function that a definition makes, and sees to it that its body is read."""
    held_by_default = [
        (name, interpreter.evaluate(frame, default))
        for name, default in syntax.defaults(node.args).items()
        if default is not None
    ]
    annotations = [parameter.annotation for parameter in parameters(node)]
    # They name types that JAX may have removed.
    for annotation in [*annotations, getattr(node, "returns", None)]:
        if annotation is not None:
            interpreter.evaluate(frame, annotation, is_quiet=True)
    # ``mesh=None`` says nothing of what will be passed.
    kept = tuple((name, held) for name, held in held_by_default if held != value(Const(None)))
    owner = frame.env.names.get("__class__") if frame.env.is_class else None
    cls = next((f for f in owner or () if isinstance(f, Class)), None)
    function = Function(node, frame.module, frame.env, cls, kept)
    frame.module.pending.append(function)
    if frame.module.project.has_definitions:
        frame.module.facts.definitions.add_function(node, frame.env.visible.definitions)
    return function


def call_function(
    frame: Frame,
    function: Function,
    arguments: Arguments,
    node: ast.expr | None = None,
    *,
    is_alone: bool = False,
) -> Value:
    """Reads a function's body with what is known of its arguments, and returns its result."""
    module = function.module
    bound = bind(function, arguments)
    if is_alone and function.owner is not None:
        bind_self(function, bound)
    tree_call = None if is_alone else frame.tree_call
    env = Environment(function.around, function.node)
    env.is_under_jit |= function.node in module.project.jitted
    env.is_under_map |= function.node in module.project.mapped
    if not is_alone:
        env.is_under_jit |= frame.env.is_under_jit
        env.is_under_map |= frame.env.is_under_map
    key = (function, frozenset(bound.items()), tree_call, env.is_under_jit, env.is_under_map)
    if key in module.results:
        return module.results[key]
    is_reading = function.node in frame.functions_being_read()
    spent = _spent_budget(frame, function, is_alone)
    if is_reading or spent:
        if not is_reading and module.project.is_following:
            place = module.place(function.node) if node is None else frame.module.place(node)
            frame.module.facts.exhausted.setdefault(spent, place)
        return UNKNOWN
    module.visited[function.node] = function
    readings = module.project.readings
    readings[function.node] = readings.get(function.node, 0) + 1
    module.results[key] = UNKNOWN
    env.names.update(bound)
    env.parameters = frozenset(bound)
    caller = None if is_alone else frame
    inner = Frame(module, env, function, caller, frame.depth + 1, tree_call=tree_call)
    if module.project.has_definitions:
        for parameter in parameters(function.node):
            inner.define(parameter.arg, parameter)
    env.self_name = self_name(function)
    if isinstance(function.node, ast.Lambda):
        inner.returned = interpreter.evaluate(inner, function.node.body)
    else:
        interpreter.execute(inner, function.node.body)
    env.is_finished = True
    inner.publish()
    if inner.yielded is not None:
        inner.returned = value(Elements(inner.yielded))
    module.results[key] = inner.returned
    return inner.returned


def _spent_budget(frame: Frame, function: Function, is_alone: bool) -> str:
    """Returns which budget does not allow to read a function once more, "" if all do."""
    project = function.module.project
    if project.readings.get(function.node, 0) >= MOST_READINGS:
        return "readings"
    if frame.depth > DEEPEST:
        return "depth"
    return "statements" if project.statements_left <= 0 and not is_alone else ""
