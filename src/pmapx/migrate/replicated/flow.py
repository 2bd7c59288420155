"""Stacked values followed through the statements of a program, to every place that uses them.

Other than ``interpret``, which tells what a value may be, this must miss nothing: a use that is not
understood is a reason for the value to stay as it is. Within a function values are followed in the
order of its statements; from one function to another by tables, which are filled in rounds until
they no longer change.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pmapx.migrate.module import Module
from pmapx.migrate.replicated.calling import Calls
from pmapx.migrate.replicated.groups import (
    NOTHING,
    OTHER,
    Abstract,
    Graph,
    Mixed,
    Pairs,
    Parts,
    Ref,
)
from pmapx.migrate.replicated.maps import Maps
from pmapx.migrate.values import Place

MOST_ROUNDS = 12
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Sent = list[tuple[Abstract, Place]]


@dataclasses.dataclass(slots=True)
class Tables:
    """What crosses the border of a function, each with where it was seen."""

    parameters: dict[tuple[ast.AST, str], Sent] = dataclasses.field(default_factory=dict)
    returns: dict[ast.AST, Sent] = dataclasses.field(default_factory=dict)
    attributes: dict[tuple[str, str], Sent] = dataclasses.field(default_factory=dict)
    bindings: dict[tuple[ast.AST, str], Sent] = dataclasses.field(default_factory=dict)

    def shape(self) -> dict[Any, Any]:
        """Returns what tells one round's tables from another's."""
        tables: list[dict[Any, Sent]] = [
            self.parameters, self.returns, self.attributes, self.bindings,
        ]  # fmt: skip
        return {
            (number, key): [_shape(held) for held, _ in sent]
            for number, table in enumerate(tables)
            for key, sent in table.items()
        }


def _shape(held: Abstract) -> Any:
    if isinstance(held, Parts):
        return tuple(_shape(item) for item in held.items)
    if isinstance(held, (Ref, Pairs)):
        ref = held if isinstance(held, Ref) else held.ref
        return type(held).__name__, id(ref.element.root), ref.is_leaf
    if isinstance(held, Mixed):
        return frozenset(id(ref.element.root) for ref in held.found)
    return held.is_nothing


class Flow:
    """One program: its modules, its pmaps, and where its stacked values go."""

    def __init__(self, modules: Iterable[Module], maps: Maps) -> None:
        """Knows the modules; nothing is followed yet."""
        self.modules = list(modules)
        self.maps = maps
        self.graph = Graph()
        self.known = Tables()
        self.found = Tables()
        self.is_settled = False
        # The callees of calls that are understood, and the functions that these call.
        self.resolved: set[ast.AST] = set()
        self.called: set[ast.AST] = set()
        project = self.modules[0].project if self.modules else None
        self._globals: dict[Module, set[str]] = {}
        self._traced = set() if project is None else {*project.mapped, *project.jitted}

    def follow(self) -> None:
        """Goes through all modules until nothing new is found."""
        for _ in range(MOST_ROUNDS):
            self.graph.forget()
            self.maps.forget()
            self.found, self.resolved, self.called = Tables(), set(), set()
            for module in self.modules:
                Body(self, module, module.source.tree, [], "").run()
            before, self.known = self.known.shape(), self.found
            if before == self.known.shape():
                self.is_settled = True
                return

    def is_traced(self, function: ast.AST) -> bool:
        """Tells whether a function's body is traced, so that rows are not seen in it."""
        return function in self._traced

    def globals_of(self, module: Module) -> set[str]:
        """Returns the names that functions of a module bind in it."""
        if module not in self._globals:
            self._globals[module] = {
                name
                for node in ast.walk(module.source.tree)
                if isinstance(node, ast.Global)
                for name in node.names
            }
        return self._globals[module]

    def gathered(self, sent: Sent) -> Abstract:
        """Returns what a parameter, attribute or result is, from all that was seen of it."""
        held: Abstract = NOTHING
        for one, place in sent:
            held = self.graph.merge(held, one, place)
        return held


class Body(Calls):
    """One reading of a function's body, or a module's, statement by statement."""

    def __init__(
        self, flow: Flow, module: Module, node: Any, around: list[ast.AST], family: str
    ) -> None:
        """Starts with what is known of the parameters."""
        super().__init__(flow, module)
        self.node = node
        self.around = around
        self.family = family
        self.env: dict[str, Abstract] = {}
        self.global_names: set[str] = set()
        self.outer_names: set[str] = set()
        self.locals = _locals(node)
        self.self_name = ""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parameters = _parameters(node)
            if family and parameters and not _is_static(node):
                self.self_name = parameters[0]
            for name in parameters:
                sent = flow.known.parameters.get((node, name), [])
                self.env[name] = flow.gathered(sent) if sent else OTHER
                place = module.place(node)
                flow.found.bindings.setdefault((node, name), []).append((self.env[name], place))

    def run(self) -> None:
        """Goes through the statements."""
        self.execute(self.node.body)
        self.publish()

    def run_traced(self) -> None:
        """Looks for values of the program around that a traced function takes in."""
        bound = {part.arg for part in ast.walk(self.node) if isinstance(part, ast.arg)}
        for inner in ast.walk(self.node):
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                bound |= _locals(inner)
        for part in ast.walk(self.node):
            is_taken_in = isinstance(part, ast.Name) and part.id not in self.locals | bound
            if is_taken_in or (isinstance(part, ast.Attribute) and self.is_own(part)):
                held = self.value(part)  # type: ignore[arg-type]
                self.escape(held, part, "a function that is traced takes it in from around it")

    def publish(self) -> None:
        """Tells other methods what the object's attributes hold here."""
        for path, held in self.env.items():
            owner, dot, name = path.partition(".")
            if dot and owner == self.self_name:
                place = self.module.place(self.node)
                self.flow.found.attributes.setdefault((self.family, name), []).append((held, place))

    def execute(self, statements: Sequence[ast.stmt]) -> bool:
        """Goes through statements in order; False if control never reaches their end."""
        for statement in statements:
            reader = _READERS.get(type(statement))
            if reader is None:
                self.use_all(statement)
            elif reader(self, statement) is False:
                return False
        return True

    def bind(self, target: ast.expr, held: Abstract) -> None:
        """Gives a value to what an assignment names."""
        if isinstance(target, ast.Name):
            self.bind_name(target.id, held, target)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, held)
        elif isinstance(target, ast.Attribute) and self.is_own(target):
            self.env[f"{self.self_name}.{target.attr}"] = held
        else:
            for part in ast.iter_child_nodes(target):
                if isinstance(part, ast.expr):
                    self.escape(self.value(part), target, "something is stored in it")
            self.escape(held, target, "it is stored where it is not followed")

    def bind_name(self, name: str, held: Abstract, node: ast.AST) -> None:
        """Binds a name, and tells the functions inside."""
        if name in self.outer_names:
            self.escape(held, node, "it is given to a name of the function around")
        self.env[name] = held
        scope = self.flow_scope(name)
        sent = self.flow.found.bindings.setdefault((scope, name), [])
        sent.append((held, self.module.place(node)))

    def flow_scope(self, name: str) -> ast.AST:
        """Returns the function or module that a name here belongs to."""
        if name in self.global_names:
            return self.module.source.tree
        found: ast.AST = self.node
        return found

    def _unpack(self, target: ast.Tuple | ast.List, held: Abstract) -> None:
        starred = any(isinstance(part, ast.Starred) for part in target.elts)
        if isinstance(held, Parts) and len(held.items) == len(target.elts) and not starred:
            for part, item in zip(target.elts, held.items, strict=True):
                self.bind(part, item)
            return
        if starred or isinstance(held, (Parts, Pairs, Mixed)):
            self.escape(held, target, "it is unpacked in a way that is not followed")
            held = OTHER
        if isinstance(held, Ref) and held.is_leaf:
            self.escape(held, target, "its rows are unpacked")
        for part in target.elts:
            self.bind(part.value if isinstance(part, ast.Starred) else part, held)

    def branch(self, branches: Sequence[Sequence[ast.stmt]], place: Place) -> bool:
        """Goes through one of several lists of statements."""
        before = self.env
        ends = []
        for statements in branches:
            self.env = dict(before)
            if self.execute(statements):
                ends.append(self.env)
        self.env = self.merged(ends, place) if ends else before
        return bool(ends)

    def merged(self, ends: Sequence[dict[str, Abstract]], place: Place) -> dict[str, Abstract]:
        """Returns what names hold after one of several ways to here."""
        merged: dict[str, Abstract] = {}
        for name in dict.fromkeys(name for end in ends for name in end):
            held: Abstract = NOTHING
            for end in ends:
                held = self.flow.graph.merge(held, end.get(name, self._unbound(name)), place)
            merged[name] = held
        return merged

    def _unbound(self, name: str) -> Abstract:
        return self.attribute_of(self.family, name.partition(".")[2]) if "." in name else NOTHING

    def repeat(self, once: Callable[[], Any], place: Place) -> None:
        """Goes through a loop's body: what one turn leaves, the next finds."""
        for _ in range(2):
            before = dict(self.env)
            once()
            self.env = self.merged([before, self.env], place)


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


def _define(body: Body, node: FunctionNode) -> None:
    for decorator in node.decorator_list:
        body.value(decorator)
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None:
            body.escape(body.value(default), default, "it is a default")
    body.env[node.name] = OTHER
    around = [*body.around, body.node]
    inner = Body(body.flow, body.module, node, around, body.family_inside())
    if body.flow.is_traced(node):
        inner.run_traced()
    else:
        inner.run()


def _define_class(body: Body, node: ast.ClassDef) -> None:
    family = body.flow.maps.family(body.module, node)
    inner = Body(body.flow, body.module, node, [*body.around, body.node], family)
    inner.execute(node.body)
    body.env[node.name] = OTHER


def _nothing(body: Body, node: ast.stmt) -> None:
    return


def _parameters(node: FunctionNode) -> list[str]:
    arguments = node.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _is_static(node: FunctionNode) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)


def _locals(node: ast.AST) -> set[str]:
    """Returns the names that a function binds itself."""
    found: set[str] = set()
    elsewhere: set[str] = set()
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        found |= {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            found.add(part.id)
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(part.name)
        elif isinstance(part, (ast.Global, ast.Nonlocal)):
            elsewhere.update(part.names)
        elif not isinstance(part, ast.Lambda):
            waiting += ast.iter_child_nodes(part)
    return found - elsewhere


_READERS: dict[type[ast.stmt], Callable[[Body, Any], bool | None]] = {
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
