"""The core of the interpreter: its state, and what reads each kind of node.

``statements``, ``expressions`` and ``calls`` give their readers to ``use``, and reach each other's
through ``execute``, ``evaluate`` and ``call``.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pmapx._src.analysis.definitions import Definition, Step
from pmapx._src.analysis.facts import Call
from pmapx._src.analysis.scopes import Environment, State
from pmapx._src.analysis.values import (
    UNKNOWN,
    Fact,
    Function,
    Instance,
    Mapped,
    Named,
    Result,
    Value,
    join,
)

if TYPE_CHECKING:
    from pmapx._src.analysis.module import Module


@dataclasses.dataclass(slots=True, eq=False)
class Frame:
    """One reading of a function's body, or of a module's."""

    module: Module
    env: Environment
    function: Function | None = None
    caller: Frame | None = None
    depth: int = 0
    returned: Value = UNKNOWN
    yielded: Value | None = None
    # What holds at each break and continue, a list a loop.
    loop_exits: list[list[State]] = dataclasses.field(default_factory=list)
    guards: int = 0
    # The tree_map that is applying this function to leaves, and its module.
    tree_call: tuple[Module, ast.expr] | None = None

    def bind(
        self,
        name: str,
        held: Value,
        node: ast.AST,
        source: ast.expr | None = None,
        steps: tuple[Step, ...] = (),
    ) -> None:
        """Binds a name to what is known of its value."""
        self.env.bind(name, held)
        if self.module.project.has_definitions:
            self.define(name, node, source, steps)

    def define(
        self,
        name: str,
        node: ast.AST,
        source: ast.expr | None = None,
        steps: tuple[Step, ...] = (),
    ) -> None:
        """Notes a binding: of a name, an attribute path of the object, or "" for what has none."""
        if not self.module.project.has_definitions:
            return
        found = self.module.facts.definitions
        # One that is read again, as in a loop, is the same.
        known = found.assigned.get(node)
        if known is not None and known.source is source and known.steps == steps:
            definition = known
        else:
            definition = found.assigned[node] = Definition(node, self.module, source, steps)
        owner = self.env.declared.get(name)
        if owner is not None and owner.node is not None:
            found.rebound.add((owner.node, name))
            found.bound.setdefault((owner.node, name), set()).add(definition)
        elif name:
            self.env.definitions[name] = frozenset({definition})
            scope = self.env.function_scope.node
            assert scope is not None
            found.bound.setdefault((scope, name), set()).add(definition)

    def functions_being_read(self) -> set[ast.AST]:
        """Returns the functions from this one to the first that calls another."""
        found: set[ast.AST] = set()
        frame: Frame | None = self
        while frame is not None:
            if frame.function is not None:
                found.add(frame.function.node)
            frame = frame.caller
        return found

    def interrupt(self, before: State) -> None:
        """Lets all bindings since a state reach this point: an exception may follow any."""
        found = self.module.facts.definitions
        scope = self.env.function_scope.node
        for name, reaching in self.env.definitions.items():
            if before[1].get(name) != reaching and scope is not None:
                self.env.definitions[name] = frozenset(found.bound[scope, name])

    def publish(self) -> None:
        """Notes what a method leaves in the attributes of its object."""
        owner = self.function.owner if self.function is not None else None
        if owner is not None:
            self.env.leave_attributes()
            for path, left in self.env.left.items():
                key = (owner.node, path.partition(".")[2])
                self.module.facts.definitions.published.setdefault(key, set()).update(left)


@dataclasses.dataclass(slots=True)
class Arguments:
    """A call's arguments: what is known of each, and the expressions where they are at hand."""

    args: list[Value]
    keywords: dict[str, Value]
    nodes: list[ast.expr | None] = dataclasses.field(default_factory=list)
    # After ``*args`` of unknown length, positions are not known.
    is_open: bool = False

    def after(self, args: Sequence[Value], keywords: Sequence[tuple[str, Value]]) -> Arguments:
        """Returns these arguments after others, such as those of a partial."""
        nodes = [*[None] * len(args), *self.nodes]
        together = {**dict(keywords), **self.keywords}
        return Arguments([*args, *self.args], together, nodes, self.is_open)

    def get(self, position: int, name: str) -> Value:
        if position < len(self.args):
            return self.args[position]
        return self.keywords.get(name, UNKNOWN)

    def has(self, position: int, name: str) -> bool:
        return position < len(self.args) or name in self.keywords


# False from a statement whose end control never reaches.
StatementReader = Callable[[Frame, Any], bool | None]
ExpressionReader = Callable[[Frame, Any], Value]
# With whether the value is not really used, as when only its shape is read.
PathReader = Callable[[Frame, Any, bool], Value]
Caller = Callable[[Frame, Any, Arguments, ast.expr], Value]

_statements: dict[type[ast.stmt], StatementReader] = {}
_expressions: dict[type[ast.expr], ExpressionReader] = {}
_paths: dict[type[ast.expr], PathReader] = {}
_callers: dict[type[Fact], Caller] = {}
_NOTED = frozenset({Result, Mapped, Instance})


def use(
    statements: Mapping[type[ast.stmt], StatementReader],
    expressions: Mapping[type[ast.expr], ExpressionReader],
    paths: Mapping[type[ast.expr], PathReader],
    callers: Mapping[type[Fact], Caller],
) -> None:
    """Sets what reads each kind of statement and expression, and calls each kind of value."""
    _statements.update(statements)
    _expressions.update(expressions)
    _paths.update(paths)
    _callers.update(callers)


def execute(frame: Frame, statements: Sequence[ast.stmt]) -> bool:
    """Reads statements in order; False if control never reaches their end."""
    falls_through = True
    project = frame.module.project
    for statement in statements:
        project.statements_left -= 1
        reader = _statements.get(type(statement))
        if reader is not None:
            falls_through &= reader(frame, statement) is not False
    return falls_through


def evaluate(frame: Frame, node: ast.expr, *, is_quiet: bool = False) -> Value:
    """Returns what is known of an expression; quietly if its value is not really used."""
    kind = type(node)
    reader = _paths.get(kind)
    if reader is not None:
        held = reader(frame, node, is_quiet)
    else:
        held = _expressions.get(kind, evaluate_parts)(frame, node)
    for fact in held:
        if type(fact) in _NOTED:
            results = frozenset([fact.of for fact in held if type(fact) is Result])
            if results:
                frame.module.facts.results[node] = results
            note_holder(frame, node, held)
            break
    return held


def evaluate_parts(frame: Frame, node: ast.expr) -> Value:
    """Reads what is in an expression of which nothing is known."""
    for part in vars(node).values():
        for child in part if type(part) is list else (part,):
            if isinstance(child, ast.expr):
                evaluate(frame, child)
    return UNKNOWN


def note_holder(frame: Frame, node: ast.expr, held: Value) -> None:
    """Notes the pmapped functions and objects that an expression may be."""
    if not frame.module.project.is_partial:
        kept = frozenset(fact for fact in held if isinstance(fact, (Mapped, Instance)))
        if kept:
            frame.module.facts.add_holder(node, kept)


def call(frame: Frame, callee: Value, arguments: Arguments, node: ast.expr) -> Value:
    """Returns what calling a value gives; ``node`` is the call, or the decorator that calls."""
    if not callee:
        return UNKNOWN
    outside = [fact.name for fact in callee if type(fact) is Named]
    if outside:
        frame.module.facts.add_call(
            Call(node, frozenset(outside), list(arguments.args), dict(arguments.keywords))
        )
    found = [
        caller(frame, fact, arguments, node)
        for fact in callee
        if (caller := _callers.get(type(fact))) is not None
    ]
    return join(*found)
