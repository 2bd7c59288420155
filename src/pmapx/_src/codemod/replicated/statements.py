"""What each statement does with stacked values: binds them, repeats over them, gives them back."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pmapx._src.codemod.replicated.groups import NOTHING, OTHER

if TYPE_CHECKING:
    from pmapx._src.codemod.replicated.body import Body


def _assign(body: Body, node: ast.Assign) -> None:
    held = body.value(node.value)
    for target in node.targets:
        body.bind(target, held)


def _annotated(body: Body, node: ast.AnnAssign) -> None:
    if node.value is not None:
        body.bind(node.target, body.value(node.value))


def _augmented(body: Body, node: ast.AugAssign) -> None:
    for part in (node.target, node.value):
        body.escape(body.value(part), node, "it is part of a sum")
    if isinstance(node.target, ast.Name):
        body.bind_name(node.target.id, OTHER, node.target)


def _for(body: Body, node: ast.For | ast.AsyncFor) -> None:
    iterated = body.value(node.iter)

    def once() -> None:
        body.bind(node.target, body.element_of(iterated, node.iter))
        body.execute(node.body)

    body.repeat(once, body.module.place(node.target))
    body.execute(node.orelse)


def _while(body: Body, node: ast.While) -> None:
    def once() -> None:
        body.condition(node.test)
        body.execute(node.body)

    body.repeat(once, body.module.place(node.test))
    body.execute(node.orelse)


def _if(body: Body, node: ast.If) -> bool:
    body.condition(node.test)
    return body.branch([node.body, node.orelse], body.module.place(node.test))


def _try(body: Body, node: ast.Try) -> bool:
    place = body.module.place(node)
    before = dict(body.env)
    falls = body.execute([*node.body, *node.orelse])
    ends = [body.env] if falls else []
    thrown = body.merged([before, body.env], place)
    for handler in node.handlers:
        body.env = dict(thrown)
        if body.execute(handler.body):
            ends.append(body.env)
    body.env = body.merged(ends, place) if ends else thrown
    return body.execute(node.finalbody) and bool(ends)


def _with(body: Body, node: ast.With | ast.AsyncWith) -> bool:
    for item in node.items:
        held = body.value(item.context_expr)
        body.escape(held, item.context_expr, "it is a context")
        if item.optional_vars is not None:
            body.bind(item.optional_vars, OTHER)
    return body.execute(node.body)


def _match(body: Body, node: ast.Match) -> bool:
    body.escape(body.value(node.subject), node.subject, "it is matched")
    for case in node.cases:
        if case.guard is not None:
            body.condition(case.guard)
        for part in ast.walk(case.pattern):
            name = getattr(part, "name", None)
            if isinstance(name, str):
                body.bind_name(name, OTHER, node.subject)
    return body.branch([*[case.body for case in node.cases], []], body.module.place(node.subject))


def _return(body: Body, node: ast.Return) -> bool:
    if node.value is not None:
        held = body.value(node.value)
        sent = body.flow.found.returns.setdefault(body.node, [])
        sent.append((held, body.module.place(node)))
    body.publish()
    return False


def _raise(body: Body, node: ast.Raise) -> bool:
    body.use_all(node)
    return False


def _leave_loop(body: Body, node: ast.stmt) -> None:
    # What follows is not run, but reading it keeps what names hold here.
    return


def _expression(body: Body, node: ast.Expr) -> None:
    body.value(node.value)


def _assert(body: Body, node: ast.Assert) -> None:
    body.condition(node.test)


def _delete(body: Body, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            body.env[target.id] = NOTHING


def _global(body: Body, node: ast.Global | ast.Nonlocal) -> None:
    if isinstance(node, ast.Global):
        body.global_names.update(node.names)
    else:
        body.outer_names.update(node.names)


def _define(body: Body, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    for decorator in node.decorator_list:
        body.value(decorator)
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None:
            body.escape(body.value(default), default, "it is a default")
    body.env[node.name] = OTHER
    inner = body.inside(node, body.family_inside())
    if body.flow.is_traced(node):
        inner.run_traced()
    else:
        inner.run()


def _define_class(body: Body, node: ast.ClassDef) -> None:
    family = body.flow.maps.family(body.module, node)
    inner = body.inside(node, family)
    inner.execute(node.body)
    body.env[node.name] = OTHER


def _nothing(body: Body, node: ast.stmt) -> None:
    return


READERS: dict[type[ast.stmt], Callable[[Body, Any], bool | None]] = {
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.If: _if,
    ast.Try: _try,
    ast.TryStar: _try,
    ast.Match: _match,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.Break: _leave_loop,
    ast.Continue: _leave_loop,
    ast.Expr: _expression,
    ast.Assert: _assert,
    ast.Delete: _delete,
    ast.Global: _global,
    ast.Nonlocal: _global,
    ast.FunctionDef: _define,
    ast.AsyncFunctionDef: _define,
    ast.ClassDef: _define_class,
    ast.Import: _nothing,
    ast.ImportFrom: _nothing,
    ast.Pass: _nothing,
}
