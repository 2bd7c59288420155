"""Following values through statements, in the order in which they would run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from pmapx._src.analysis import binding, expressions, mixed_devices
from pmapx._src.analysis.facts import Reference
from pmapx._src.analysis.frame import Arguments, Frame
from pmapx._src.analysis.scopes import Environment, joined
from pmapx._src.analysis.values import (
    UNKNOWN,
    Class,
    Const,
    Donated,
    Elements,
    Function,
    Instance,
    Named,
    Value,
    join,
    value,
)

_GUARDING_ERRORS = ("ImportError", "ModuleNotFoundError", "AttributeError", "Exception")
_GUARDING_WORDS = ("hasattr", "__version__", "version_info", "JAX_VERSION", "jax_version")
DEEPEST = 12
# Readings of one function with different arguments.
MOST_READINGS = 12


def execute(frame: Frame, statements: Sequence[ast.stmt]) -> bool:
    """Reads statements in order; False if control never reaches their end."""
    falls_through = True
    for statement in statements:
        frame.module.project.statements_left -= 1
        reader = _READERS.get(type(statement))
        if reader is not None:
            falls_through &= reader(frame, statement) is not False
    return falls_through


def call_function(
    frame: Frame, function: Function, arguments: Arguments, *, is_alone: bool = False
) -> Value:
    """Reads a function's body with what is known of its arguments, and returns its result."""
    module = function.module
    bound = binding.bind(function, arguments)
    if is_alone and function.owner is not None:
        binding.bind_self(function, bound)
    tree_call = None if is_alone else frame.tree_call
    env = Environment(function.around)
    env.is_under_jit |= function.node in module.project.jitted
    env.is_under_map |= function.node in module.project.mapped
    if not is_alone:
        env.is_under_jit |= frame.env.is_under_jit
        env.is_under_map |= frame.env.is_under_map
    key = (function, frozenset(bound.items()), tree_call, env.is_under_jit, env.is_under_map)
    if key in module.results:
        return module.results[key]
    is_reading = any(f.function is not None and f.function.node is function.node
                     for f in _callers(frame))  # fmt: skip
    readings = module.project.readings
    too_many = readings.get(function.node, 0) >= MOST_READINGS
    is_over = module.project.statements_left <= 0 and not is_alone
    if is_reading or too_many or frame.depth > DEEPEST or is_over:
        return UNKNOWN
    readings[function.node] = readings.get(function.node, 0) + 1
    module.results[key] = UNKNOWN
    env.names.update(bound)
    env.parameters = frozenset(bound)
    caller = None if is_alone else frame
    inner = Frame(module, env, function, caller, frame.depth + 1, tree_call=tree_call)
    if isinstance(function.node, ast.Lambda):
        inner.returned = expressions.evaluate(inner, function.node.body)
    else:
        execute(inner, function.node.body)
    if inner.yielded is not None:
        inner.returned = value(Elements(inner.yielded))
    module.results[key] = inner.returned
    return inner.returned


def _callers(frame: Frame | None) -> list[Frame]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.caller
    return frames


def _import(frame: Frame, node: ast.Import) -> None:
    for alias in node.names:
        _refer(frame, alias, alias.name)
        project = frame.module.project
        if alias.asname is not None:
            frame.env.bind(alias.asname, project.imported(frame.module.path, alias.name))
        else:
            top = alias.name.partition(".")[0]
            frame.env.bind(top, project.imported(frame.module.path, top))


def _import_from(frame: Frame, node: ast.ImportFrom) -> None:
    project, path = frame.module.project, frame.module.path
    for alias in node.names:
        if alias.name == "*":
            star = project.module_path(path, node.module or "", node.level)
            frame.env.outermost.star_imports.append(star or (node.module or ""))
            continue
        held = project.imported_from(path, node.module or "", node.level, alias.name)
        for fact in held:
            if isinstance(fact, Named):
                _refer(frame, alias, fact.name)
        frame.env.bind(alias.asname or alias.name, held)


def _refer(frame: Frame, alias: ast.alias, name: str) -> None:
    frame.module.facts.references[alias] = Reference(alias, name, "import", frame.guards > 0, True)


def _define_function(frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    # Decorators are evaluated first and applied last.
    decorators = [expressions.evaluate(frame, decorator) for decorator in node.decorator_list]
    function = make_function(frame, node)
    held = value(function)
    for decorator, known in zip(reversed(node.decorator_list), reversed(decorators), strict=True):
        held = expressions.decorate(frame, decorator, known, held)
    frame.env.bind(node.name, held)


def make_function(
    frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
) -> Function:
    """Returns the function that a definition makes, and sees to it that its body is read."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [
        (parameter.arg, expressions.evaluate(frame, default))
        for parameter, default in zip(
            reversed(positional), reversed(arguments.defaults), strict=False
        )
    ]
    defaults += [
        (parameter.arg, expressions.evaluate(frame, default))
        for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is not None
    ]
    parameters = [*positional, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    annotations = [parameter.annotation for parameter in parameters if parameter is not None]
    # They name types that JAX may have removed.
    for annotation in [*annotations, getattr(node, "returns", None)]:
        if annotation is not None:
            expressions.evaluate(frame, annotation, is_quiet=True)
    # ``mesh=None`` says nothing of what will be passed.
    kept = tuple((name, held) for name, held in defaults if held != value(Const(None)))
    owner = frame.env.names.get("__class__") if frame.env.is_class else None
    cls = next((f for f in owner or () if isinstance(f, Class)), None)
    function = Function(node, frame.module, frame.env, cls, kept)
    frame.module.pending.append(function)
    return function


def _define_class(frame: Frame, node: ast.ClassDef) -> None:
    for decorator in node.decorator_list:
        expressions.evaluate(frame, decorator)
    bases = tuple(expressions.evaluate(frame, base) for base in node.bases)
    for keyword in node.keywords:
        expressions.evaluate(frame, keyword.value)
    attributes = frame.module.attributes.setdefault(node, {})
    env = Environment(frame.env, is_class=True)
    cls = Class(node, frame.module, bases, attributes, env.names)
    env.names["__class__"] = value(cls)
    inner = Frame(frame.module, env, frame.function, frame.caller, frame.depth)
    execute(inner, node.body)
    # The class keeps the dict that its body has become after branches.
    cls.body.update(env.names)
    frame.env.bind(node.name, value(cls))


def _return(frame: Frame, node: ast.Return) -> bool:
    if node.value is not None:
        frame.returned = join(frame.returned, expressions.evaluate(frame, node.value))
    return False


def _raise(frame: Frame, node: ast.Raise) -> bool:
    for part in (node.exc, node.cause):
        if part is not None:
            expressions.evaluate(frame, part)
    return False


def _assign(frame: Frame, node: ast.Assign) -> None:
    held = expressions.evaluate(frame, node.value)
    for target in node.targets:
        assign(frame, target, held)


def _annotated_assign(frame: Frame, node: ast.AnnAssign) -> None:
    expressions.evaluate(frame, node.annotation, is_quiet=True)
    if node.value is not None:
        assign(frame, node.target, expressions.evaluate(frame, node.value))


def _augmented_assign(frame: Frame, node: ast.AugAssign) -> None:
    before = expressions.evaluate(frame, node.target)
    added = expressions.evaluate(frame, node.value)
    mixed_devices.note(frame, node, before, added)
    is_list = any(isinstance(fact, Elements) for fact in before)
    assign(frame, node.target, join(before, added) if is_list else UNKNOWN)


def assign(frame: Frame, target: ast.expr, held: Value) -> None:
    """Binds a target, which may be a name, an attribute, an item or a tuple of targets."""
    held = frozenset(fact for fact in held if not isinstance(fact, Donated))
    if isinstance(target, ast.Name):
        frame.env.bind(target.id, held)
    elif isinstance(target, ast.Starred):
        assign(frame, target.value, UNKNOWN)
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = binding.unpacked(held, len(target.elts))
        if any(isinstance(part, ast.Starred) for part in target.elts):
            parts = [UNKNOWN] * len(target.elts)
        for part, known in zip(target.elts, parts, strict=True):
            assign(frame, part, known)
    elif isinstance(target, ast.Attribute):
        owner = expressions.evaluate(frame, target.value, is_quiet=True)
        path = expressions.dotted(target)
        if path is not None:
            frame.env.forget_below(path)
            frame.env.names[path] = held
        for fact in owner:
            if isinstance(fact, Instance):
                attributes = fact.cls.attributes
                if held:
                    fact.cls.module.telling_attributes.add(target.attr)
                attributes[target.attr] = join(attributes.get(target.attr, UNKNOWN), held)
    elif isinstance(target, ast.Subscript):
        index = expressions.evaluate(frame, target.slice)
        expressions.store_item(frame, target.value, index, held)


def _for(frame: Frame, node: ast.For | ast.AsyncFor) -> None:
    iterated = expressions.evaluate(frame, node.iter)
    element = expressions.iterate(frame, node.iter, iterated)

    def once() -> None:
        assign(frame, node.target, element)
        execute(frame, node.body)

    _loop(frame, once)
    execute(frame, node.orelse)


def _while(frame: Frame, node: ast.While) -> None:
    def once() -> None:
        expressions.evaluate(frame, node.test)
        execute(frame, node.body)

    _loop(frame, once)
    execute(frame, node.orelse)


def _loop(frame: Frame, once: Callable[[], None]) -> None:
    """Reads a loop's body twice: what the first turn leaves, the second finds."""
    ends = [dict(frame.env.names)]
    for _ in range(2):
        frame.loop_exits.append([])
        once()
        ends += frame.loop_exits.pop()
        ends.append(dict(frame.env.names))
    frame.env.names = joined(ends)


def _leave_loop(frame: Frame, node: ast.Break | ast.Continue) -> bool:
    if frame.loop_exits:
        frame.loop_exits[-1].append(dict(frame.env.names))
    return False


def _if(frame: Frame, node: ast.If) -> bool:
    expressions.evaluate(frame, node.test)
    is_guard = asks_for_a_version(node.test)
    frame.guards += is_guard
    falls = _branches(frame, [node.body, node.orelse])
    frame.guards -= is_guard
    return falls


def asks_for_a_version(test: ast.expr) -> bool:
    """Tells whether a condition asks which JAX is there, so that both sides are meant."""
    known = vars(test)
    if "asks_for_a_version" not in known:
        known["asks_for_a_version"] = any(
            (isinstance(part, ast.Name) and part.id in _GUARDING_WORDS)
            or (isinstance(part, ast.Attribute) and part.attr in _GUARDING_WORDS)
            for part in ast.walk(test)
        )
    return bool(known["asks_for_a_version"])


def _branches(frame: Frame, branches: Sequence[Sequence[ast.stmt]]) -> bool:
    before = frame.env.names
    ends = []
    for statements in branches:
        frame.env.names = dict(before)
        if execute(frame, statements):
            ends.append(frame.env.names)
    frame.env.names = joined(ends) if ends else before
    return bool(ends)


def _try(frame: Frame, node: ast.Try) -> bool:
    is_guard = any(_catches_missing(handler) for handler in node.handlers)
    frame.guards += is_guard
    before = dict(frame.env.names)
    falls = execute(frame, [*node.body, *node.orelse])
    after = frame.env.names
    ends = [after] if falls else []
    for handler in node.handlers:
        frame.env.names = joined([before, dict(after)])
        if handler.type is not None:
            expressions.evaluate(frame, handler.type)
        if handler.name is not None:
            frame.env.bind(handler.name, UNKNOWN)
        if execute(frame, handler.body):
            ends.append(frame.env.names)
    frame.guards -= is_guard
    frame.env.names = joined(ends) if ends else after
    return execute(frame, node.finalbody) and bool(ends)


def _catches_missing(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(
        (isinstance(part, ast.Name) and part.id in _GUARDING_ERRORS)
        for part in ast.walk(handler.type)
    )


def _with(frame: Frame, node: ast.With | ast.AsyncWith) -> bool:
    for item in node.items:
        held = expressions.evaluate(frame, item.context_expr)
        if item.optional_vars is not None:
            assign(frame, item.optional_vars, held)
    return execute(frame, node.body)


def _match(frame: Frame, node: ast.Match) -> bool:
    expressions.evaluate(frame, node.subject)
    for case in node.cases:
        for part in ast.walk(case.pattern):
            name = getattr(part, "name", None)
            if isinstance(name, str):
                frame.env.bind(name, UNKNOWN)
        if case.guard is not None:
            expressions.evaluate(frame, case.guard)
    return _branches(frame, [*[case.body for case in node.cases], []])


def _expression(frame: Frame, node: ast.Expr) -> None:
    expressions.evaluate(frame, node.value)


def _assert(frame: Frame, node: ast.Assert) -> None:
    expressions.evaluate(frame, node.test)


def _delete(frame: Frame, node: ast.Delete) -> None:
    for target in node.targets:
        path = expressions.dotted(target)
        if path is not None:
            frame.env.forget_below(path)
            frame.env.names[path] = UNKNOWN


def _global(frame: Frame, node: ast.Global | ast.Nonlocal) -> None:
    if isinstance(node, ast.Global):
        frame.env.global_names.update(node.names)


_READERS: dict[type[ast.stmt], Callable[[Frame, Any], bool | None]] = {
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.FunctionDef: _define_function,
    ast.AsyncFunctionDef: _define_function,
    ast.ClassDef: _define_class,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated_assign,
    ast.AugAssign: _augmented_assign,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.Break: _leave_loop,
    ast.Continue: _leave_loop,
    ast.If: _if,
    ast.Try: _try,
    ast.TryStar: _try,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Match: _match,
    ast.Expr: _expression,
    ast.Assert: _assert,
    ast.Delete: _delete,
    ast.Global: _global,
    ast.Nonlocal: _global,
}
