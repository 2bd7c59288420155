"""The statements of a body, in the order in which they would run."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence

from pmapx._src.analysis.interpreter.statements import captured, imported
from pmapx._src.codemod.varying.calls import Calls
from pmapx._src.codemod.varying.scopes import Names, Scope
from pmapx._src.codemod.varying.values import (
    MOST_ROUNDS,
    Cause,
    Fresh,
    Given,
    Items,
    Literal,
    NotFollowedError,
    Table,
    Value,
    any_of,
    cause_of,
    join,
    shapes,
    vary,
)


class Reading(Calls):
    """One reading of a body, given which of its arguments vary."""

    def execute(self, scope: Scope, statements: Sequence[ast.stmt]) -> bool:
        """Reads statements in order; False if control never reaches their end."""
        return all(self.reader(each)(scope, each) is not False for each in statements)

    def read_assign(self, scope: Scope, node: ast.Assign) -> None:
        held = self.value(scope, node.value)
        for target in node.targets:
            self.bind(scope, target, held)

    def read_annassign(self, scope: Scope, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(scope, node.target, self.value(scope, node.value))

    def read_augassign(self, scope: Scope, node: ast.AugAssign) -> None:
        # Expressions are read alike whatever their context.
        before = self.value(scope, node.target)
        added = self.value(scope, node.value)
        found = cause_of(before, added) or self.control
        if found is not None and not isinstance(before, (Fresh, Literal)):
            # A list or array may be changed in place.
            vary(before, found)
        # A container is as long as both together.
        is_container = isinstance(before, (Items, Table))
        self.bind(scope, node.target, Value(found, (before,)) if is_container else Fresh(found))

    def read_if(self, scope: Scope, node: ast.If) -> bool:
        known = self.constant(scope, node.test)
        if known is not None:
            return self.execute(scope, node.body if known else node.orelse)
        found = cause_of(self.value(scope, node.test))
        return self._branches(scope, found, [(node.body, {}), (node.orelse, {})])

    def read_match(self, scope: Scope, node: ast.Match) -> bool:
        subject = self.value(scope, node.subject)
        cases = [
            (case.body, {name: any_of(subject) for _, name in captured(case)})
            for case in node.cases
        ]
        guards = [self.value(scope, case.guard) for case in node.cases if case.guard is not None]
        return self._branches(scope, cause_of(subject, *guards), [([], {}), *cases])

    def _branches(
        self, scope: Scope, cause: Cause | None, branches: Sequence[tuple[list[ast.stmt], Names]]
    ) -> bool:
        """Reads statements of which one of several lists runs, each with names of its own."""
        before, ends, returns = scope.names, [], len(scope.returned)
        for statements, bound in branches:
            scope.names = {**before, **bound}
            if self.under(cause, functools.partial(self.execute, scope, statements)):
                ends.append(scope.names)
        if len(scope.returned) > returns:
            # What follows happens on some devices only, too.
            self.control = self.control or cause
        scope.names = _merged(ends or [before])
        return bool(ends)

    def read_for(self, scope: Scope, node: ast.For) -> None:
        iterated = self.value(scope, node.iter)
        # Over a varying array, each device still takes as many rounds.
        self._loop(scope, node, None, lambda: self.bind(scope, node.target, self.element(iterated)))

    def read_while(self, scope: Scope, node: ast.While) -> None:
        found = cause_of(self.value(scope, node.test))
        self._loop(scope, node, found, lambda: self.value(scope, node.test))

    def _loop(
        self,
        scope: Scope,
        node: ast.For | ast.While,
        cause: Cause | None,
        start: Callable[[], object],
    ) -> None:
        broken: list[Names] = []
        for _ in range(MOST_ROUNDS):
            before, shapes_before = dict(scope.names), shapes(scope.names)
            scope.exits.append(([], []))
            start()
            is_through = self.under(cause, lambda: self.execute(scope, node.body))
            breaks, continues = scope.exits.pop()
            broken += breaks
            scope.names = _merged([before, *continues, *([scope.names] if is_through else [])])
            if shapes_before == shapes(scope.names):
                break
        else:
            raise NotFollowedError("a loop", node.lineno)
        self.execute(scope, node.orelse)
        scope.names = _merged([scope.names, *broken])

    def read_break(self, scope: Scope, node: ast.Break | ast.Continue) -> bool:
        if self.control is not None:
            raise NotFollowedError("a loop", node.lineno)
        if scope.exits:
            scope.exits[-1][isinstance(node, ast.Continue)].append(dict(scope.names))
        return False

    read_continue = read_break

    def read_with(self, scope: Scope, node: ast.With) -> bool:
        for item in node.items:
            held = self.value(scope, item.context_expr)
            if item.optional_vars is not None:
                self.bind(scope, item.optional_vars, any_of(held))
        return self.execute(scope, node.body)

    def read_try(self, scope: Scope, node: ast.Try) -> bool:
        seen = [dict(scope.names)]
        is_through = True
        for statement in node.body:
            is_through = self.execute(scope, [statement])
            seen.append(dict(scope.names))
            if not is_through:
                break
        if is_through:
            is_through = self.execute(scope, node.orelse)
        ends = [scope.names] if is_through else []
        for handler in node.handlers:
            scope.names = _merged([dict(each) for each in seen])
            if handler.name:
                scope.names[handler.name] = Value()
            if self.execute(scope, handler.body):
                ends.append(scope.names)
        scope.names = _merged(ends or seen)
        return self.execute(scope, node.finalbody) and bool(ends)

    def read_return(self, scope: Scope, node: ast.Return) -> bool:
        held = Literal(value=None) if node.value is None else self.value(scope, node.value)
        scope.returned.append(self.controlled(held))
        return False

    def read_expr(self, scope: Scope, node: ast.Expr) -> None:
        self.value(scope, node.value)

    def read_functiondef(self, scope: Scope, node: ast.FunctionDef) -> None:
        held = self.read_lambda(scope, node)
        for decorator in reversed(node.decorator_list):
            held = self.call(self.value(scope, decorator), Given([held]), decorator)
        scope.names[node.name] = self.controlled(held)

    def read_classdef(self, scope: Scope, node: ast.ClassDef) -> None:
        # Its methods may take in anything of the body around them.
        scope.names[node.name] = Value(Cause(f"class {node.name}", node.lineno))

    def read_global(self, scope: Scope, node: ast.Global | ast.Nonlocal) -> None:
        for name in node.names:
            scope.declare(name, is_global=isinstance(node, ast.Global))

    read_nonlocal = read_global

    def read_import(self, scope: Scope, node: ast.Import | ast.ImportFrom) -> None:
        if node.names[0].name == "*":
            raise NotFollowedError("import *", node.lineno)
        for _, name, held in imported(scope.module, node):
            scope.names[name] = self.outside.value(held)

    read_importfrom = read_import

    def read_delete(self, scope: Scope, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.names.pop(target.id, None)
            elif isinstance(target, (ast.Attribute, ast.Subscript)):
                index = [target.slice] if isinstance(target, ast.Subscript) else []
                given = [self.value(scope, each) for each in index]
                self.store(self.value(scope, target.value), given)

    def read_assert(self, scope: Scope, node: ast.Assert) -> None:
        self.value(scope, node.test)

    def read_pass(self, scope: Scope, node: ast.Pass) -> None:
        """Does nothing."""

    def read_raise(self, scope: Scope, node: ast.Raise) -> bool:
        return False


def _merged(several: Sequence[Names]) -> Names:
    """Returns what names hold after one of several paths."""
    first, *others = several
    if not others:
        return first
    merged = dict(first)
    for names in others:
        for name, held in names.items():
            merged[name] = join(merged[name], held) if name in merged else held
    return merged
