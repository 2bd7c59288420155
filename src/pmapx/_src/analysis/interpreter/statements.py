"""Following values through statements, in the order in which they would run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pmapx._src.analysis.definitions import EACH, OPAQUE
from pmapx._src.analysis.facts import Reference
from pmapx._src.analysis.interpreter import mixed_devices
from pmapx._src.analysis.interpreter.assignment import assign
from pmapx._src.analysis.interpreter.expressions import asks_for_a_version
from pmapx._src.analysis.interpreter.frame import (
    Arguments,
    Frame,
    StatementReader,
    call,
    evaluate,
    execute,
)
from pmapx._src.analysis.interpreter.functions import make_function
from pmapx._src.analysis.interpreter.indexing import iterate
from pmapx._src.analysis.interpreter.lookup import dotted
from pmapx._src.analysis.scopes import Environment, State
from pmapx._src.analysis.values import UNKNOWN, Class, Elements, Mesh, Named, Value, join, value

if TYPE_CHECKING:
    from pmapx._src.analysis.module import Module

_GUARDING_ERRORS = ("ImportError", "ModuleNotFoundError", "AttributeError", "Exception")
# These raise SystemExit, or end the process.
_EXITS = frozenset({"sys.exit", "os._exit", "builtins.exit", "builtins.quit"})


def imported(
    module: Module, node: ast.Import | ast.ImportFrom
) -> Iterator[tuple[ast.alias, str, Value]]:
    """Yields the names that an import binds, and what each holds; none of ``import *``."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            home, name = node.module or "", alias.asname or alias.name
            if alias.name != "*":
                yield (
                    alias,
                    name,
                    module.project.imported_from(module.path, home, node.level, alias.name),
                )
        else:
            name = alias.asname or alias.name.partition(".")[0]
            imported = alias.name if alias.asname is not None else name
            yield alias, name, module.project.imported(module.path, imported)


def _import(frame: Frame, node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
        project, home = frame.module.project, node.module or ""
        star = project.module_path(frame.module.path, home, node.level)
        frame.env.outermost.star_imports.append(star or home)
    for alias, name, held in imported(frame.module, node):
        if isinstance(node, ast.Import):
            _refer(frame, alias, alias.name)
        else:
            for fact in held:
                if isinstance(fact, Named):
                    _refer(frame, alias, fact.name)
        frame.bind(name, held, alias)


def _refer(frame: Frame, alias: ast.alias, name: str) -> None:
    frame.module.facts.references[alias] = Reference(alias, name, "import", frame.guards > 0, True)


def _define_function(frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    # Decorators are evaluated first and applied last.
    decorators = [evaluate(frame, decorator) for decorator in node.decorator_list]
    function = make_function(frame, node)
    held = value(function)
    for decorator, known in zip(reversed(node.decorator_list), reversed(decorators), strict=True):
        held = decorate(frame, decorator, known, held)
    frame.bind(node.name, held, node)


def _define_class(frame: Frame, node: ast.ClassDef) -> None:
    for decorator in node.decorator_list:
        evaluate(frame, decorator)
    bases = tuple(evaluate(frame, base) for base in node.bases)
    for keyword in node.keywords:
        evaluate(frame, keyword.value)
    attributes = frame.module.attributes.setdefault(node, {})
    env = Environment(frame.env, node)
    cls = Class(node, frame.module, bases, attributes, env.names)
    env.names["__class__"] = value(cls)
    inner = Frame(frame.module, env, frame.function, frame.caller, frame.depth)
    execute(inner, node.body)
    # The class keeps the dict that its body has become after branches.
    cls.body.update(env.names)
    frame.bind(node.name, value(cls), node)


def _return(frame: Frame, node: ast.Return) -> bool:
    if node.value is not None:
        frame.returned = join(frame.returned, evaluate(frame, node.value))
    frame.env.leave_attributes()
    return False


def _raise(frame: Frame, node: ast.Raise) -> bool:
    for part in (node.exc, node.cause):
        if part is not None:
            evaluate(frame, part)
    return False


def _assign(frame: Frame, node: ast.Assign) -> None:
    held = evaluate(frame, node.value)
    for target in node.targets:
        assign(frame, target, held, node.value)


def _annotated_assign(frame: Frame, node: ast.AnnAssign) -> None:
    evaluate(frame, node.annotation, is_quiet=True)
    if node.value is not None:
        assign(frame, node.target, evaluate(frame, node.value), node.value)


def _augmented_assign(frame: Frame, node: ast.AugAssign) -> None:
    before = evaluate(frame, node.target)
    added = evaluate(frame, node.value)
    mixed_devices.note(frame, node, before, added)
    is_list = any(isinstance(fact, Elements) for fact in before)
    held = join(before, added) if is_list else UNKNOWN
    assign(frame, node.target, held, node.value, (OPAQUE,))


def _for(frame: Frame, node: ast.For | ast.AsyncFor) -> None:
    element = iterate(evaluate(frame, node.iter))

    def once() -> None:
        assign(frame, node.target, element, node.iter, (EACH,))
        execute(frame, node.body)

    _loop(frame, once)
    execute(frame, node.orelse)


def _while(frame: Frame, node: ast.While) -> None:
    def once() -> None:
        evaluate(frame, node.test)
        execute(frame, node.body)

    _loop(frame, once)
    execute(frame, node.orelse)


def _loop(frame: Frame, once: Callable[[], None]) -> None:
    """Reads a loop's body twice: what the first turn leaves, the second finds."""
    env = frame.env
    ends: list[State] = [env.state]
    for _ in range(2):
        env.enter(env.state)
        # A turn may also begin after one that ``continue`` has ended.
        env.merge_definitions(ends)
        frame.loop_exits.append([])
        once()
        ends += frame.loop_exits.pop()
        ends.append(env.state)
    env.merge(ends)


def _leave_loop(frame: Frame, node: ast.Break | ast.Continue) -> bool:
    if frame.loop_exits:
        frame.loop_exits[-1].append(frame.env.state)
        frame.env.enter(frame.env.state)
    return False


def _if(frame: Frame, node: ast.If) -> bool:
    evaluate(frame, node.test)
    is_guard = asks_for_a_version(node.test)
    frame.guards += is_guard
    falls = _branches(frame, [node.body, node.orelse])
    frame.guards -= is_guard
    return falls


def _branches(frame: Frame, branches: Sequence[Sequence[ast.stmt]]) -> bool:
    before = frame.env.state
    ends = []
    for statements in branches:
        if not statements:
            ends.append(before)
            continue
        frame.env.enter(before)
        if execute(frame, statements):
            ends.append(frame.env.state)
    frame.env.merge(ends or [before])
    return bool(ends)


def _try(frame: Frame, node: ast.Try) -> bool:
    is_guard = any(_catches_missing(handler) for handler in node.handlers)
    frame.guards += is_guard
    before = frame.env.state
    frame.env.enter(before)
    falls = execute(frame, [*node.body, *node.orelse])
    after = frame.env.state
    ends = [after] if falls else []
    for handler in node.handlers:
        frame.env.merge([before, after])
        frame.interrupt(before)
        if handler.type is not None:
            evaluate(frame, handler.type)
        if handler.name is not None:
            frame.bind(handler.name, UNKNOWN, handler)
        if execute(frame, handler.body):
            ends.append(frame.env.state)
    frame.guards -= is_guard
    frame.env.merge(ends or [after])
    if node.finalbody:
        frame.interrupt(before)
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
        held = evaluate(frame, item.context_expr)
        if any(isinstance(fact, Mesh) for fact in held):
            entered = frame.module.facts.entered_meshes
            entered[item.context_expr] = join(entered.get(item.context_expr, UNKNOWN), held)
        if item.optional_vars is not None:
            assign(frame, item.optional_vars, held, item.context_expr, (OPAQUE,))
    return execute(frame, node.body)


def _match(frame: Frame, node: ast.Match) -> bool:
    evaluate(frame, node.subject)
    for case in node.cases:
        for part, name in captured(case):
            frame.bind(name, UNKNOWN, part)
        if case.guard is not None:
            evaluate(frame, case.guard)
    return _branches(frame, [*[case.body for case in node.cases], []])


def captured(case: ast.match_case) -> Iterator[tuple[ast.AST, str]]:
    """Yields the names that a pattern binds."""
    for part in ast.walk(case.pattern):
        name = getattr(part, "name", None) or getattr(part, "rest", None)
        if isinstance(name, str):
            yield part, name


def _expression(frame: Frame, node: ast.Expr) -> bool:
    evaluate(frame, node.value)
    call = frame.module.facts.calls.get(node.value)
    return not (call is not None and call.names and call.names <= _EXITS)


def _assert(frame: Frame, node: ast.Assert) -> None:
    evaluate(frame, node.test)


def _delete(frame: Frame, node: ast.Delete) -> None:
    for target in node.targets:
        path = dotted(target)
        if path is not None:
            frame.env.forget_below(path)
            frame.env.set_path(path, UNKNOWN)
            frame.env.definitions.pop(path, None)


def _global(frame: Frame, node: ast.Global | ast.Nonlocal) -> None:
    for name in node.names:
        frame.env.declare(name, is_global=isinstance(node, ast.Global))


def decorate(frame: Frame, decorator: ast.expr, known: Value, function: Value) -> Value:
    """Returns what a decorator makes of a function."""
    if isinstance(decorator, ast.Name) and decorator.id in ("property", "cached_property"):
        return UNKNOWN
    result = call(frame, known, Arguments([function], {}, [None]), decorator)
    # An unknown decorator most likely returns something that is called as the function is.
    return result or (UNKNOWN if known & value(Named("builtins.property")) else function)


READERS: dict[type[ast.stmt], StatementReader] = {
    ast.Import: _import,
    ast.ImportFrom: _import,
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
