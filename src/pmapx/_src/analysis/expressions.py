"""What is known of an expression's value."""

from __future__ import annotations

import ast
import builtins
import dataclasses
from collections.abc import Callable
from typing import Any

from pmapx._src.analysis import calls, known_names, mixed_devices, statements
from pmapx._src.analysis import known_calls as known
from pmapx._src.analysis.facts import Indexing, Reference
from pmapx._src.analysis.frame import Arguments, Frame
from pmapx._src.analysis.scopes import Environment
from pmapx._src.analysis.values import (
    UNKNOWN,
    Bound,
    Class,
    Confidence,
    Const,
    Dict,
    Donated,
    Elements,
    Exported,
    Fact,
    Function,
    Gradient,
    Instance,
    Items,
    Lowered,
    Mapped,
    Method,
    Named,
    NotATuple,
    Result,
    Stacked,
    Value,
    constant,
    join,
    value,
)

_BUILTINS = frozenset(dir(builtins))


def evaluate(frame: Frame, node: ast.expr, *, is_quiet: bool = False) -> Value:
    """Returns what is known of an expression; quietly if its value is not really used."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        held = _evaluate_path(frame, node, is_quiet=is_quiet)
    elif isinstance(node, ast.Subscript):
        held = _subscript(frame, node, is_quiet=is_quiet)
    else:
        held = _READERS.get(type(node), _parts)(frame, node)
    for fact in held:
        if isinstance(fact, (Result, Mapped, Instance)):
            results = frozenset(fact.of for fact in held if isinstance(fact, Result))
            if results:
                frame.module.facts.results[node] = results
            _note_holder(frame, node, held)
            break
    return held


def _note_holder(frame: Frame, node: ast.expr, held: Value) -> None:
    kept = frozenset(fact for fact in held if isinstance(fact, (Mapped, Instance)))
    if kept:
        frame.module.facts.add_holder(node, kept)


def _parts(frame: Frame, node: ast.expr) -> Value:
    for part in vars(node).values():
        for child in part if type(part) is list else (part,):
            if isinstance(child, ast.expr):
                evaluate(frame, child)
    return UNKNOWN


def decorate(frame: Frame, decorator: ast.expr, known: Value, function: Value) -> Value:
    """Returns what a decorator makes of a function."""
    if isinstance(decorator, ast.Name) and decorator.id in ("property", "cached_property"):
        return UNKNOWN
    result = calls.call(frame, known, Arguments([function], {}, [None]), decorator)
    # An unknown decorator most likely returns something that is called as the function is.
    return result or (UNKNOWN if known & value(Named("builtins.property")) else function)


def dotted(node: ast.AST) -> str | None:
    """Returns ``a.b.c`` for such an expression, None for others."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        # Asked for at every reading, and for each part of a chain.
        known = vars(node)
        if "dotted" not in known:
            base = dotted(node.value)
            known["dotted"] = None if base is None else f"{base}.{node.attr}"
        path: str | None = known["dotted"]
        return path
    return None


def iterate(frame: Frame, node: ast.expr, iterated: Value) -> Value:
    """Returns what a loop's variable holds."""
    element = UNKNOWN
    for fact in iterated:
        if isinstance(fact, Items):
            element = join(element, *fact.items)
        elif isinstance(fact, Elements):
            element = join(element, fact.element)
        elif isinstance(fact, Stacked):
            # Rows of an array, or parts of a tuple: nobody knows.
            doubtful = dataclasses.replace(fact, confidence=Confidence.LOW)
            element = join(element, value(doubtful))
    return element


def store_item(frame: Frame, container: ast.expr, index: Value, held: Value) -> None:
    """Takes note that ``container[index] = held``."""
    before = evaluate(frame, container, is_quiet=True)
    path = dotted(container)
    kept = frozenset(fact for fact in held if isinstance(fact, (Stacked, Mapped)))
    # What has a name in a library is no container that the program made.
    if path is None or not kept or any(isinstance(fact, Named) for fact in before):
        return
    lists = [fact for fact in before if isinstance(fact, (Items, Elements))]
    if isinstance(constant(index), str) and not lists:
        # A dict with stacked leaves is itself a stacked tree.
        frame.env.names[path] = join(before, kept)
    else:
        parts = [iterate(frame, container, value(fact)) for fact in lists]
        others = frozenset(fact for fact in before if fact not in lists)
        frame.env.names[path] = join(others, value(Elements(join(kept, *parts))))


def looked_up(frame: Frame, held: Value) -> Value:
    """Replaces names of other modules by what they hold there."""
    for fact in held:
        if isinstance(fact, Exported) and fact.name:
            return _looked_up(frame, held)
    return held


def _looked_up(frame: Frame, held: Value) -> Value:
    found: list[Value] = []
    for fact in held:
        if isinstance(fact, Exported) and fact.name:
            exported = frame.module.project.exported(fact.path, fact.name)
            deeper = frozenset(f for f in exported if f != fact)
            found.append(looked_up(frame, deeper))
        else:
            found.append(value(fact))
    return join(*found)


def _evaluate_path(
    frame: Frame, node: ast.Name | ast.Attribute, *, is_quiet: bool, is_part: bool = False
) -> Value:
    """A name or a chain of attributes; the whole chain is one reference, not each part."""
    path = dotted(node)
    held = frame.env.find(path) if path is not None else None
    if held is None:
        held = (
            _evaluate_name(frame, node)
            if isinstance(node, ast.Name)
            else _evaluate_attribute(frame, node, is_quiet=is_quiet)
        )
    held = looked_up(frame, held)
    is_outside = False
    for fact in held:
        if isinstance(fact, Named):
            is_outside = True
        elif isinstance(fact, Donated) and not is_quiet:
            frame.module.facts.add_donated_use(node, fact)
    if is_part:
        _note_holder(frame, node, held)
    # A parameter has no meaning of its own, whatever its default.
    elif is_outside and not (isinstance(node, ast.Name) and frame.env.is_parameter(node.id)):
        name = min(fact.name for fact in held if isinstance(fact, Named))
        by = "name" if isinstance(node, ast.Name) else "attribute"
        frame.module.facts.references[node] = Reference(
            node, name, by, frame.guards > 0, len(held) == 1
        )
    return held


def _evaluate_name(frame: Frame, node: ast.Name) -> Value:
    module = frame.env.outermost
    for star in module.star_imports:
        held = frame.module.project.exported(star, node.id)
        is_builtin = node.id in _BUILTINS and not any(isinstance(f, Exported) for f in held)
        if held and not is_builtin:
            return held
    return value(Named(f"builtins.{node.id}")) if node.id in _BUILTINS else UNKNOWN


def _evaluate_attribute(frame: Frame, node: ast.Attribute, *, is_quiet: bool) -> Value:
    is_quiet |= node.attr in known_names.METADATA or node.attr == "keys"
    if isinstance(node.value, (ast.Name, ast.Attribute)):
        base = _evaluate_path(frame, node.value, is_quiet=is_quiet, is_part=True)
    else:
        base = evaluate(frame, node.value, is_quiet=is_quiet)
    return join(*[attribute(frame, fact, node.attr) for fact in base])


def attribute(frame: Frame, fact: Fact, name: str) -> Value:
    """Returns what an attribute of something holds."""
    project = frame.module.project
    if isinstance(fact, Named):
        return project.imported(frame.module.path, f"{fact.name}.{name}")
    if isinstance(fact, Exported):
        return looked_up(frame, project.exported(fact.path, name))
    if isinstance(fact, Instance):
        return _of_instance(frame, fact, name)
    if isinstance(fact, Class):
        return _of_class(frame, fact, name, [])
    if isinstance(fact, Stacked):
        if name in known_names.METADATA:
            return value(Method(fact, name))
        whole = dataclasses.replace(fact, doubt=Confidence.LOW)
        return value(whole, Method(fact, name))
    if isinstance(fact, Gradient):
        return value(fact)
    if isinstance(fact, (Mapped, Lowered, Elements, Dict, Items)):
        return value(Method(fact, name))
    return UNKNOWN


def _of_instance(frame: Frame, instance: Instance, name: str) -> Value:
    held = instance.cls.attributes.get(name, UNKNOWN)
    found = _of_class(frame, instance.cls, name, [], has_own=bool(held))
    return join(
        held,
        frozenset(
            Bound(fact, instance) if isinstance(fact, Function) and _is_method(fact) else fact
            for fact in found
        ),
    )


def _is_method(function: Function) -> bool:
    decorators = getattr(function.node, "decorator_list", [])
    return function.owner is not None and not any(
        isinstance(decorator, ast.Name) and decorator.id == "staticmethod"
        for decorator in decorators
    )


def _of_class(
    frame: Frame, cls: Class, name: str, seen: list[Class], *, has_own: bool = False
) -> Value:
    """``has_own`` if the object has the attribute already, whatever a base's methods assign."""
    if name in cls.body:
        return looked_up(frame, cls.body[name])
    if len(seen) < 10:
        for base in cls.bases:
            for fact in looked_up(frame, base):
                if isinstance(fact, Class) and fact not in seen:
                    held = _of_class(frame, fact, name, [*seen, cls], has_own=has_own)
                    if not has_own:
                        held = join(held, fact.attributes.get(name, UNKNOWN))
                    if held:
                        return held
    return UNKNOWN


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
    frame.module.facts.add_callee(node, known)
    return calls.call(frame, known, arguments, node)


def _add_starred(arguments: Arguments, held: Value) -> None:
    if len(held) == 1:
        (fact,) = held
        if isinstance(fact, Items) and not arguments.is_open:
            arguments.args += fact.items
            arguments.nodes += [None] * len(fact.items)
            return
    arguments.is_open = True


def _subscript(frame: Frame, node: ast.Subscript, *, is_quiet: bool) -> Value:
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
        return dict(fact.items).get(chosen, UNKNOWN) if isinstance(chosen, str) else UNKNOWN
    if isinstance(fact, Stacked):
        return _row(frame, fact, node, chosen, index)
    if isinstance(fact, Gradient):
        return value(fact)
    if isinstance(fact, Result) and fact.of in known_names.DEVICES and type(chosen) is int:
        return value(Result(f"{fact.of}[]"))
    return UNKNOWN


def _row(
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
        # The more an index may choose from a tuple, the less sure it is to take a row.
        sure = Confidence(Confidence.HIGH + 1 - (stacked.doubt if first is None else 1))
        seen = dataclasses.replace(stacked, confidence=min(stacked.confidence, sure))
        known.record_row(frame, node, seen)
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
    """``state[0].count`` and ``state[0]["w"]`` choose from a tuple: a row has no such parts."""
    parent = frame.module.parent(node)
    if isinstance(parent, ast.Attribute):
        return parent.attr not in known_names.ARRAY_ATTRIBUTES
    return isinstance(parent, ast.Subscript) and isinstance(_literal(parent.slice), str)


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ...


def _constant(frame: Frame, node: ast.Constant) -> Value:
    return value(Const(node.value))


def _unary(frame: Frame, node: ast.UnaryOp) -> Value:
    operand = evaluate(frame, node.operand)
    literal = constant(operand)
    if isinstance(node.op, ast.USub) and type(literal) in (int, float):
        return value(Const(-literal))
    return frozenset(fact for fact in operand if isinstance(fact, Gradient))


def _binary(frame: Frame, node: ast.BinOp) -> Value:
    left, right = evaluate(frame, node.left), evaluate(frame, node.right)
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
    return gradients or value(NotATuple())


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
    is_guard = statements.asks_for_a_version(node.test)
    frame.guards += is_guard
    held = join(evaluate(frame, node.body), evaluate(frame, node.orelse))
    frame.guards -= is_guard
    return held


def _boolean(frame: Frame, node: ast.BoolOp) -> Value:
    return join(*[evaluate(frame, part) for part in node.values])


def _named(frame: Frame, node: ast.NamedExpr) -> Value:
    held = evaluate(frame, node.value)
    statements.assign(frame, node.target, held)
    return held


def _lambda(frame: Frame, node: ast.Lambda) -> Value:
    return value(statements.make_function(frame, node))


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
        iterated = evaluate(inner, generator.iter)
        statements.assign(inner, generator.target, iterate(inner, generator.iter, iterated))
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
            held = iterate(frame, node.value, held)
        frame.yielded = join(frame.yielded or UNKNOWN, held)
    else:
        frame.yielded = frame.yielded or UNKNOWN
    return UNKNOWN


def _passed_through(frame: Frame, node: ast.Await | ast.Starred) -> Value:
    return evaluate(frame, node.value)


_READERS: dict[type[ast.expr], Callable[[Frame, Any], Value]] = {
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
