"""What is known of an expression's value."""

from __future__ import annotations

import ast

from pmapx._src.analysis import syntax
from pmapx._src.analysis.definitions import EACH
from pmapx._src.analysis.interpreter import mixed_devices
from pmapx._src.analysis.interpreter.assignment import assign
from pmapx._src.analysis.interpreter.frame import (
    Arguments,
    ExpressionReader,
    Frame,
    PathReader,
    call,
    evaluate,
)
from pmapx._src.analysis.interpreter.functions import make_function
from pmapx._src.analysis.interpreter.indexing import iterate, subscript
from pmapx._src.analysis.interpreter.lookup import path_value
from pmapx._src.analysis.scopes import Environment
from pmapx._src.analysis.values import (
    UNKNOWN,
    Const,
    Dict,
    Elements,
    Gradient,
    Items,
    Mapped,
    NotATuple,
    Stacked,
    Value,
    constant,
    join,
    value,
)

_NOT_A_TUPLE = value(NotATuple())
_GUARDING_WORDS = ("hasattr", "__version__", "version_info", "JAX_VERSION", "jax_version")


def asks_for_a_version(test: ast.expr) -> bool:
    """Returns whether a condition tests the JAX version, so that both branches are valid code."""
    known = test.__dict__
    if "asks_for_a_version" not in known:
        known["asks_for_a_version"] = any(
            (isinstance(part, ast.Name) and part.id in _GUARDING_WORDS)
            or (isinstance(part, ast.Attribute) and part.attr in _GUARDING_WORDS)
            for part in syntax.walk(test)
        )
    return bool(known["asks_for_a_version"])


def _call(frame: Frame, node: ast.Call) -> Value:
    known = evaluate(frame, node.func)
    arguments = Arguments([], {})
    for arg in node.args:
        if isinstance(arg, ast.Starred):
            _add_starred(arguments, evaluate(frame, arg.value))
        else:
            arguments.args.append(evaluate(frame, arg))
            arguments.nodes.append(arg)
    for keyword in node.keywords:
        held = evaluate(frame, keyword.value)
        if keyword.arg is not None:
            arguments.keywords[keyword.arg] = held
        else:
            for fact in held:
                if isinstance(fact, Dict):
                    arguments.keywords.update(fact.items)
    project = frame.module.project
    if not project.is_partial:
        frame.module.facts.add_callee(node, known)
    if project.has_definitions and frame.env.function_scope.self_name:
        _leave_attributes(frame, node, known)
    return call(frame, known, arguments, node)


def _leave_attributes(frame: Frame, node: ast.Call, callee: Value) -> None:
    """A method of the same object, or a function that gets it, may change its attributes."""
    own = frame.env.function_scope.self_name
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    is_given = any(isinstance(arg, ast.Name) and arg.id == own for arg in given)
    is_method = (
        isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == own
        and not (callee and all(isinstance(fact, Mapped) for fact in callee))
    )
    if is_given or is_method:
        frame.env.leave_attributes()


def _add_starred(arguments: Arguments, held: Value) -> None:
    if len(held) == 1:
        (fact,) = held
        if isinstance(fact, Items) and not arguments.is_open:
            arguments.args += fact.items
            arguments.nodes += [None] * len(fact.items)
            return
    arguments.is_open = True


def _constant(frame: Frame, node: ast.Constant) -> Value:
    # Asked for at every reading.
    known = node.__dict__
    if "held" not in known:
        known["held"] = value(Const(node.value))
    held: Value = known["held"]
    return held


def _unary(frame: Frame, node: ast.UnaryOp) -> Value:
    operand = evaluate(frame, node.operand)
    if not operand:
        return UNKNOWN
    literal = constant(operand)
    if isinstance(node.op, ast.USub) and type(literal) in (int, float):
        return value(Const(-literal))
    return frozenset(fact for fact in operand if isinstance(fact, Gradient))


def _binary(frame: Frame, node: ast.BinOp) -> Value:
    left, right = evaluate(frame, node.left), evaluate(frame, node.right)
    if not left and not right:
        return _NOT_A_TUPLE
    mixed_devices.note(frame, node, left, right)
    if isinstance(node.op, ast.Mult):
        # [x] * n
        repeated = [fact for fact in left if isinstance(fact, Items) and len(fact.items) == 1]
        if repeated:
            return join(*[value(Elements(fact.items[0])) for fact in repeated])
    if isinstance(node.op, ast.Add):
        pairs = [
            value(Items(a.items + b.items, a.is_tuple))
            for a in left
            for b in right
            if isinstance(a, Items) and isinstance(b, Items)
        ]
        if pairs:
            return join(*pairs)
    gradients = frozenset(fact for fact in left | right if isinstance(fact, Gradient))
    return gradients or _NOT_A_TUPLE


def _items(frame: Frame, node: ast.Tuple | ast.List) -> Value:
    if any(isinstance(part, ast.Starred) for part in node.elts):
        parts = [
            evaluate(frame, part.value if isinstance(part, ast.Starred) else part)
            for part in node.elts
        ]
        return UNKNOWN if isinstance(node, ast.Tuple) else value(Elements(join(*parts)))
    items = tuple(evaluate(frame, part) for part in node.elts)
    if isinstance(node, ast.List) and not items:
        return value(Elements(UNKNOWN))
    return value(Items(items, isinstance(node, ast.Tuple)))


def _dict(frame: Frame, node: ast.Dict) -> Value:
    items, is_open, stacked = [], False, UNKNOWN
    for key, item in zip(node.keys, node.values, strict=True):
        held = evaluate(frame, item)
        name = constant(evaluate(frame, key)) if key is not None else ...
        if isinstance(name, str):
            items.append((name, held))
        else:
            is_open = True
            stacked = join(stacked, frozenset(f for f in held if isinstance(f, Stacked)))
    return join(value(Dict(tuple(items), is_open)), stacked)


def _conditional(frame: Frame, node: ast.IfExp) -> Value:
    evaluate(frame, node.test)
    is_guard = asks_for_a_version(node.test)
    frame.guards += is_guard
    held = join(evaluate(frame, node.body), evaluate(frame, node.orelse))
    frame.guards -= is_guard
    return held


def _boolean(frame: Frame, node: ast.BoolOp) -> Value:
    return join(*[evaluate(frame, part) for part in node.values])


def _named(frame: Frame, node: ast.NamedExpr) -> Value:
    held = evaluate(frame, node.value)
    assign(frame, node.target, held, node.value)
    return held


def _lambda(frame: Frame, node: ast.Lambda) -> Value:
    return value(make_function(frame, node))


def _comprehension(
    frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
) -> Value:
    inner = Frame(
        frame.module,
        Environment(frame.env),
        frame.function,
        frame.caller,
        frame.depth,
        guards=frame.guards,
    )
    for generator in node.generators:
        element = iterate(evaluate(inner, generator.iter))
        assign(inner, generator.target, element, generator.iter, (EACH,))
        for condition in generator.ifs:
            evaluate(inner, condition)
    if isinstance(node, ast.DictComp):
        evaluate(inner, node.key)
        held = evaluate(inner, node.value)
        return frozenset(fact for fact in held if isinstance(fact, Stacked))
    return value(Elements(evaluate(inner, node.elt)))


def _yield(frame: Frame, node: ast.Yield | ast.YieldFrom) -> Value:
    if node.value is not None:
        held = evaluate(frame, node.value)
        if isinstance(node, ast.YieldFrom):
            held = iterate(held)
        frame.yielded = join(frame.yielded or UNKNOWN, held)
    else:
        frame.yielded = frame.yielded or UNKNOWN
    return UNKNOWN


def _passed_through(frame: Frame, node: ast.Await | ast.Starred) -> Value:
    return evaluate(frame, node.value)


READERS: dict[type[ast.expr], ExpressionReader] = {
    ast.Call: _call,
    ast.Constant: _constant,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: mixed_devices.compare,
    ast.Tuple: _items,
    ast.List: _items,
    ast.Dict: _dict,
    ast.IfExp: _conditional,
    ast.BoolOp: _boolean,
    ast.NamedExpr: _named,
    ast.Lambda: _lambda,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _comprehension,
    ast.Yield: _yield,
    ast.YieldFrom: _yield,
    ast.Await: _passed_through,
    ast.Starred: _passed_through,
}

PATHS: dict[type[ast.expr], PathReader] = {
    ast.Name: path_value,
    ast.Attribute: path_value,
    ast.Subscript: subscript,
}
