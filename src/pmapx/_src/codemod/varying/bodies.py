"""The statements of a body: what names hold after each, on every path."""

from __future__ import annotations

import abc
import ast
import functools
from collections.abc import Callable, Sequence
from typing import Any

from pmapx._src.codemod.varying.scopes import Outside, Scope
from pmapx._src.codemod.varying.values import (
    Cause,
    Either,
    Fresh,
    Items,
    Literal,
    NotFollowedError,
    Table,
    Value,
    cause_of,
    functions_in,
    join,
    joined,
    shape,
    vary,
)

# Rounds of a loop, and expressions of a whole proof.
MOST_ROUNDS = 8
MOST_EXPRESSIONS = 60_000
Names = dict[str, Value]


class Frame:
    """One call of a function that is being read."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.returned: list[Value] = []
        self.yielded: list[Value] = []
        # The names at each break, and at each continue, a pair for a loop.
        self.exits: list[tuple[list[Names], list[Names]]] = []


class Bodies(abc.ABC):
    """Statements; subclasses add expressions and calls."""

    def __init__(self) -> None:
        self.outside = Outside()
        self.left = MOST_EXPRESSIONS
        # Why the path to here is taken on some devices only, and whether anything varied so far.
        self.control: Cause | None = None
        self.varied: Cause | None = None

    @abc.abstractmethod
    def value(self, frame: Frame, node: ast.expr) -> Value: ...

    @abc.abstractmethod
    def constant(self, frame: Frame, node: ast.expr) -> bool | None: ...

    @abc.abstractmethod
    def part(self, held: Value, index: int, count: int) -> Value: ...

    @abc.abstractmethod
    def define(self, frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Value: ...

    def execute(self, frame: Frame, statements: Sequence[ast.stmt]) -> bool:
        """Reads statements in order; False if control never reaches their end."""
        for statement in statements:
            reader = _READERS.get(type(statement))
            if reader is None:
                raise NotFollowedError(f"{type(statement).__name__}", statement.lineno)
            if reader(self, frame, statement) is False:
                return False
        return True

    def under(self, cause: Cause | None, read: Callable[[], Any]) -> Any:
        """Reads what happens on some devices only, if there is a cause for that."""
        before = self.control
        self.control = before or cause
        try:
            return read()
        finally:
            self.control = before

    def controlled(self, held: Value) -> Value:
        """Returns a value as it is on a path that some devices may not take."""
        if self.control is None or cause_of(held) is not None:
            return held
        return Value(self.control, (held,)) if not functions_in([held]) else held

    def bind(self, frame: Frame, target: ast.expr, held: Value) -> None:
        """Gives a target its value."""
        held = self.controlled(held)
        if isinstance(target, ast.Name):
            self._bind_name(frame.scope, target, held)
        elif isinstance(target, (ast.Tuple, ast.List)):
            count = len(target.elts)
            has_star = any(isinstance(each, ast.Starred) for each in target.elts)
            for index, each in enumerate(target.elts):
                if isinstance(each, ast.Starred):
                    rest = Value(cause_of(held), (held,))
                    self.bind(frame, each.value, rest)
                else:
                    part = Value(cause_of(held), (held,)) if has_star else None
                    self.bind(frame, each, part or self.part(held, index, count))
        elif isinstance(target, ast.Attribute):
            self._set(self.value(frame, target.value), target.attr, held, target)
        elif isinstance(target, ast.Subscript):
            chosen = self.value(frame, target.slice)
            base = self.value(frame, target.value)
            key = chosen.value if isinstance(chosen, Literal) else None
            self._set(base, key if isinstance(key, str) else None, held, target)
            self._store(base, chosen, target)
        else:
            raise NotFollowedError("an assignment", target.lineno)

    def _bind_name(self, scope: Scope, target: ast.Name, held: Value) -> None:
        if target.id not in scope.declared:
            scope.names[target.id] = held
            return
        owner = scope.around
        while owner is not None and target.id not in owner.names:
            owner = owner.around
        if owner is None:
            raise NotFollowedError(f"the global {target.id}", target.lineno)
        owner.names[target.id] = join(owner.names[target.id], held)

    def _set(self, base: Value, key: str | None, held: Value, node: ast.expr) -> None:
        if isinstance(base, Either):
            for option in base.options:
                self._set(option, key, held, node)
        elif isinstance(base, Table) and key is not None:
            before = base.items.get(key)
            if before is None and base.rest is not None:
                before = Value(cause_of(base.rest), (base.rest,))
            base.items[key] = held if before is None else join(before, held)
        else:
            self._store(base, held, node)

    def _store(self, base: Value, held: Value, node: ast.AST) -> None:
        """Puts a value into an object, or into a name of another scope."""
        found = cause_of(held)
        if found is not None:
            vary(base, found)
        elif functions_in([held]):
            if not isinstance(base, Table):
                raise NotFollowedError("a function that is stored", getattr(node, "lineno", 0))
            base.rest = held if base.rest is None else join(base.rest, held)

    def _assign(self, frame: Frame, node: ast.Assign) -> None:
        held = self.value(frame, node.value)
        for target in node.targets:
            self.bind(frame, target, held)

    def _annotated(self, frame: Frame, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(frame, node.target, self.value(frame, node.value))

    def _augmented(self, frame: Frame, node: ast.AugAssign) -> None:
        # Expressions are read alike whatever their context.
        before = self.value(frame, node.target)
        added = self.value(frame, node.value)
        found = cause_of(before, added) or self.control
        if found is not None and not isinstance(before, (Fresh, Literal)):
            # A list or array may be changed in place.
            vary(before, found)
        if isinstance(before, (Items, Table)):
            # It is as long as both together.
            result: Value = Value(found, (before,))
        else:
            result = Fresh(found)
        self.bind(frame, node.target, result)

    def _if(self, frame: Frame, node: ast.If) -> bool:
        known = self.constant(frame, node.test)
        if known is not None:
            return self.execute(frame, node.body if known else node.orelse)
        found = cause_of(self.value(frame, node.test))
        scope, before = frame.scope, frame.scope.names
        ends: list[Names] = []
        for branch in (node.body, node.orelse):
            scope.names = dict(before)
            if self.under(found, functools.partial(self.execute, frame, branch)):
                ends.append(scope.names)
        if not ends:
            return False
        scope.names = _merged(ends)
        return True

    def _match(self, frame: Frame, node: ast.Match) -> bool:
        subject = self.value(frame, node.subject)
        found = cause_of(subject)
        scope, before = frame.scope, frame.scope.names
        ends: list[Names] = [before]
        for case in node.cases:
            scope.names = dict(before)
            for part in ast.walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if isinstance(name, str):
                    scope.names[name] = Value(found, (subject,))
            if self.under(found, functools.partial(self.execute, frame, case.body)):
                ends.append(scope.names)
        scope.names = _merged(ends)
        return True

    def _for(self, frame: Frame, node: ast.For) -> None:
        iterated = self.value(frame, node.iter)
        self._loop(frame, node, cause_of(iterated), lambda: self._next(frame, node, iterated))

    def _next(self, frame: Frame, node: ast.For, iterated: Value) -> None:
        if isinstance(iterated, Items) and iterated.items and not iterated.is_open:
            element = joined(iterated.items)
            if iterated.cause is not None:
                element = Value(iterated.cause, (element,))
        else:
            element = Value(cause_of(iterated), (iterated,))
        self.bind(frame, node.target, element)

    def _while(self, frame: Frame, node: ast.While) -> None:
        found = cause_of(self.value(frame, node.test))
        self._loop(frame, node, found, lambda: self.value(frame, node.test))

    def _loop(
        self,
        frame: Frame,
        node: ast.For | ast.While,
        found: Cause | None,
        start: Callable[[], object],
    ) -> None:
        scope = frame.scope
        # Over a varying array, each device still takes as many rounds; a varying test does not.
        cause = found if isinstance(node, ast.While) else None
        broken: list[Names] = []
        for _ in range(MOST_ROUNDS):
            before = dict(scope.names)
            frame.exits.append(([], []))
            start()
            is_through = self.under(cause, lambda: self.execute(frame, node.body))
            breaks, continues = frame.exits.pop()
            broken += breaks
            ends = [before, *continues, *([scope.names] if is_through else [])]
            scope.names = _merged(ends)
            if _shapes(before) == _shapes(scope.names):
                break
        else:
            raise NotFollowedError("a loop", node.lineno)
        self.execute(frame, node.orelse)
        scope.names = _merged([scope.names, *broken])

    def _leave(self, frame: Frame, node: ast.Break | ast.Continue) -> bool:
        if self.control is not None:
            raise NotFollowedError("a loop", node.lineno)
        if frame.exits:
            frame.exits[-1][isinstance(node, ast.Continue)].append(dict(frame.scope.names))
        return False

    def _with(self, frame: Frame, node: ast.With) -> bool:
        for item in node.items:
            held = self.value(frame, item.context_expr)
            if item.optional_vars is not None:
                self.bind(frame, item.optional_vars, Value(cause_of(held), (held,)))
        return self.execute(frame, node.body)

    def _try(self, frame: Frame, node: ast.Try) -> bool:
        scope = frame.scope
        seen = [dict(scope.names)]
        is_through = True
        for statement in node.body:
            is_through = self.execute(frame, [statement])
            seen.append(dict(scope.names))
            if not is_through:
                break
        if is_through:
            is_through = self.execute(frame, node.orelse)
        ends = [scope.names] if is_through else []
        for handler in node.handlers:
            scope.names = _merged([dict(each) for each in seen])
            if handler.name:
                scope.names[handler.name] = Value()
            if self.execute(frame, handler.body):
                ends.append(scope.names)
        if not ends:
            scope.names = _merged(seen)
            self.execute(frame, node.finalbody)
            return False
        scope.names = _merged(ends)
        return self.execute(frame, node.finalbody)

    def _return(self, frame: Frame, node: ast.Return) -> bool:
        held = Literal(value=None) if node.value is None else self.value(frame, node.value)
        frame.returned.append(self.controlled(held))
        return False

    def _expression(self, frame: Frame, node: ast.Expr) -> None:
        self.value(frame, node.value)

    def _function(self, frame: Frame, node: ast.FunctionDef) -> None:
        frame.scope.names[node.name] = self.define(frame, node)

    def _class(self, frame: Frame, node: ast.ClassDef) -> None:
        # Its methods may take in anything of the body around them.
        frame.scope.names[node.name] = Value(Cause(f"class {node.name}", node.lineno))

    def _declare(self, frame: Frame, node: ast.Global | ast.Nonlocal) -> None:
        frame.scope.declared.update(node.names)

    def _import(self, frame: Frame, node: ast.Import) -> None:
        module = frame.scope.module
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            held = module.project.imported(module.path, name)
            bound = alias.asname or name
            frame.scope.names[bound] = self.outside.value(module, held, is_all=True)

    def _import_from(self, frame: Frame, node: ast.ImportFrom) -> None:
        module = frame.scope.module
        for alias in node.names:
            if alias.name == "*":
                raise NotFollowedError("import *", node.lineno)
            held = module.project.imported_from(
                module.path, node.module or "", node.level, alias.name
            )
            bound = alias.asname or alias.name
            frame.scope.names[bound] = self.outside.value(module, held, is_all=True)

    def _delete(self, frame: Frame, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                frame.scope.names.pop(target.id, None)

    def _assert(self, frame: Frame, node: ast.Assert) -> None:
        self.value(frame, node.test)


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


def _shapes(names: Names) -> dict[str, Any]:
    return {name: shape(held) for name, held in names.items()}


_READERS: dict[type[ast.stmt], Callable[[Bodies, Frame, Any], bool | None]] = {
    ast.Assign: Bodies._assign,
    ast.AnnAssign: Bodies._annotated,
    ast.AugAssign: Bodies._augmented,
    ast.If: Bodies._if,
    ast.Match: Bodies._match,
    ast.For: Bodies._for,
    ast.While: Bodies._while,
    ast.Break: Bodies._leave,
    ast.Continue: Bodies._leave,
    ast.With: Bodies._with,
    ast.Try: Bodies._try,
    ast.Return: Bodies._return,
    ast.Expr: Bodies._expression,
    ast.FunctionDef: Bodies._function,
    ast.ClassDef: Bodies._class,
    ast.Global: Bodies._declare,
    ast.Nonlocal: Bodies._declare,
    ast.Import: Bodies._import,
    ast.ImportFrom: Bodies._import_from,
    ast.Delete: Bodies._delete,
    ast.Assert: Bodies._assert,
    ast.Pass: lambda bodies, frame, node: None,
    ast.Raise: lambda bodies, frame, node: False,
}
