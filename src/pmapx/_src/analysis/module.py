"""A module that is read: its source, its names at the end, and the facts seen in it."""

from __future__ import annotations

import ast
import bisect
import functools
import os
from typing import TYPE_CHECKING

from pmapx._src.analysis import definitions, known_calls, known_names, syntax
from pmapx._src.analysis.facts import Facts
from pmapx._src.analysis.interpreter import calls, expressions, statements
from pmapx._src.analysis.interpreter import frame as interpreter
from pmapx._src.analysis.interpreter.frame import Arguments, Frame
from pmapx._src.analysis.interpreter.functions import call_function
from pmapx._src.analysis.scopes import Environment
from pmapx._src.analysis.values import (
    UNKNOWN,
    Class,
    Exported,
    Fact,
    Function,
    Mapped,
    Named,
    Partial,
    Place,
    Stacked,
    Value,
    join,
    value,
)
from pmapx._src.source.files import Source, first_line

if TYPE_CHECKING:
    from pmapx._src.analysis.project import Project

interpreter.use(
    statements.READERS,
    expressions.READERS,
    expressions.PATHS,
    {**calls.CALLERS, Named: known_calls.call_named},
)
# Attributes set in one method are read in another, and a function is mapped below its definition:
# what the first reading learns, the second uses.
READINGS = 2
# What one module may cost, in statements read; beyond it calls are no longer followed.
STATEMENTS = 60_000
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

# A function, what its parameters hold, the tree_map that applies it, and under what it runs.
Key = tuple[Function, frozenset[tuple[str, Value]], tuple["Module", ast.expr] | None, bool, bool]


class Module:
    """One file; ``read()`` fills ``facts``."""

    def __init__(
        self,
        source: Source,
        project: Project,
        *,
        is_followed: bool = True,
        has_bodies: bool = True,
    ) -> None:
        """Holds the source; nothing is read yet.

        Unless followed, only names are looked at; without bodies, only those of the module itself.
        """
        self.source = source
        self.project = project
        self.facts = Facts()
        self.env = Environment(node=source.tree)
        self.attributes: dict[ast.ClassDef, dict[str, Value]] = {}
        self.pending: list[Function] = []
        self.results: dict[Key, Value] = {}
        self.is_followed = is_followed and has_bodies
        self._has_bodies = has_bodies
        self._parents: dict[ast.AST, ast.AST] = {}
        self._around: dict[ast.AST, list[ast.AST]] = {}
        self._walked: set[int] = set()
        # The functions that were read or passed over, and whether one should have been read later.
        self.visited: dict[ast.AST, Function] = {}
        self.has_news = False
        # Whether all of its names are bound, and whether all of its functions were read too.
        self.is_executed = False
        self.is_read = False

    @property
    def path(self) -> str:
        return self.source.path

    def read(self) -> None:
        """Follows values through the module."""
        project = self.project
        before = project.statements_left, project.readings, project.is_following
        project.is_following = self.is_followed
        for reading in range(READINGS if self.is_followed else 1):
            if reading > 0 and not self.has_news:
                break
            self.has_news, self.visited = False, {}
            self.facts = Facts()
            self.env = Environment(node=self.source.tree)
            self.pending, self.results, project.readings = [], {}, {}
            project.statements_left = STATEMENTS if self.is_followed else 0
            frame = Frame(self, self.env)
            self.is_executed = False
            interpreter.execute(frame, self.source.tree.body)
            self.is_executed = True
            marked = project.marked_late
            self.read_pending()
            self.has_news |= marked != project.marked_late
        project.statements_left, project.readings, project.is_following = before
        self.is_read = True

    def read_pending(self) -> None:
        """Reads the bodies of functions whether or not anything seen calls them."""
        while self.pending and self._has_bodies:
            function = self.pending.pop(0)
            self.visited[function.node] = function
            if not self.project.has_definitions and not self.project.relevance.of(function):
                continue
            frame = Frame(self, function.around)
            call_function(frame, function, Arguments([], {}), is_alone=True)

    def set_attribute(self, frame: Frame, cls: Class, name: str, held: Value) -> None:
        """Notes what an attribute of a class's objects may hold."""
        before = cls.attributes.get(name, UNKNOWN)
        cls.attributes[name] = join(before, held)
        if held <= before:
            return
        self.project.pmaps.add_attribute(cls, name, held)
        if not self.project.relevance.add_attribute(cls, name, held):
            return
        # A method may have been read before what it uses was assigned.
        if not self.has_news:
            now = frame.functions_being_read()
            self.has_news = any(
                node not in now and self.project.relevance.reads_attribute(function, name)
                for node, function in self.visited.items()
            )

    def exported(self, name: str) -> Value:
        """Returns what another module gets that imports a name from this one."""
        held = self.env.find(name)
        if held is None:
            for star in self.env.star_imports:
                held = self.project.exported(star, name)
                if held:
                    return held
            return UNKNOWN
        return held

    def binds(self, name: str, full: str) -> bool:
        """Returns whether a name of the module holds an outside object, and nothing else."""
        return self.env.find(name) == value(Named(full))

    def call_at(self, place: Place) -> ast.Call | None:
        """Returns the call of an outside function at a place."""
        calls = (call for call in self.facts.calls if isinstance(call, ast.Call))
        return next((call for call in calls if self.place(call) == place), None)

    def ways_to_pmap(self) -> set[str]:
        """Returns the module's names that lead to pmap or to what it returned."""
        found = {
            name
            for name, held in self.env.names.items()
            if any(_leads_to_pmap(fact) for fact in self._passed_on(held))
        }
        for (function, *_), held in self.results.items():
            # Other files cannot name what is defined in a function.
            is_local = isinstance(function.around.function_scope.node, _FUNCTIONS)
            if not is_local and any(isinstance(fact, (Mapped, Stacked)) for fact in held):
                found.add(function.name)
        return {name for name in found if name.isidentifier()}

    def _passed_on(self, held: Value) -> Value:
        return join(
            *[
                self.project.exported(fact.path, fact.name)
                if isinstance(fact, Exported) and fact.name
                else value(fact)
                for fact in held
            ]
        )

    def place(self, node: ast.AST) -> Place:
        return self.source.place(node)

    @functools.cached_property
    def attribute_uses(self) -> dict[str, list[ast.Attribute]]:
        """Its uses of attributes, by their names."""
        found: dict[str, list[ast.Attribute]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Attribute):
                found.setdefault(node.attr, []).append(node)
        return found

    @property
    def with_definitions(self) -> Module:
        """The same file, with the same tree, read with the bindings of all names."""
        if self.project.has_definitions:
            return self
        return self.project.with_definitions.modules.get(os.path.normpath(self.path)) or self

    def text(self, node: ast.AST) -> str:
        """Returns the source of a node."""
        return self.source.segment(self.place(node))

    def statement(self, node: ast.AST) -> ast.stmt:
        """Returns the innermost statement that has a node, or is it."""
        while not isinstance(node, ast.stmt):
            node = self.parent(node)
        return node

    def top_statement(self, node: ast.AST) -> ast.stmt:
        """Returns the statement of the top level that has a node."""
        while not isinstance(self.parent(node), ast.Module):
            node = self.parent(node)
        assert isinstance(node, ast.stmt)
        return node

    def parent(self, node: ast.AST) -> ast.AST:
        """Returns the parent of a node; only the statement of the module around it is walked."""
        if node in self._parents:
            return self._parents[node]
        line = getattr(node, "lineno", 0)
        around = bisect.bisect_right(self._starts, line) - 1
        # Several statements may begin on one line.
        while node not in self._parents and around >= 0:
            if around not in self._walked and self.project.is_partial:
                # A rule asks for few nodes, mostly on the lines that their positions name.
                self._walk(around, line)
            if around not in self._walked and node not in self._parents:
                self._walked.add(around)
                self._walk(around)
            if self._starts[around] < line:
                break
            around -= 1
        return self._parents.get(node, self.source.tree)

    def _walk(self, around: int, line: int | None = None) -> None:
        """Notes the parents in a statement of the module, or of what is on one line of it."""
        parents, statement = self._parents, self.source.tree.body[around]
        parents[statement] = self.source.tree
        todo: list[ast.AST] = [statement]
        while todo:
            parent = todo.pop()
            for child in syntax.children(parent):
                parents[child] = parent
                if line is None or _is_on(child, line):
                    todo.append(child)

    @functools.cached_property
    def _starts(self) -> list[int]:
        """The first line of each statement of the module, its decorators included."""
        return [first_line(statement) for statement in self.source.tree.body]

    @functools.cached_property
    def bound_names(self) -> frozenset[str]:
        """Every name that anything but an import binds, in whatever scope."""
        return frozenset(definitions.bound(self.nodes))

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, in the order of ``ast.walk``."""
        return syntax.walk(self.source.tree)

    def functions_around(self, node: ast.AST) -> list[ast.AST]:
        """Returns the functions around a node, innermost first."""
        known = self._around.get(node)
        if known is not None:
            return known
        around: list[ast.AST] = []
        parent = self.parent(node)
        while parent is not self.source.tree:
            if isinstance(parent, _FUNCTIONS):
                around.append(parent)
            parent = self._parents[parent]
        self._around[node] = around
        return around


def _is_on(node: ast.AST, line: int) -> bool:
    """Returns whether a node, or what it has if it has no place of its own, may be on a line."""
    end = getattr(node, "end_lineno", None)
    return end is None or first_line(node) <= line <= end


def _leads_to_pmap(fact: Fact) -> bool:
    if isinstance(fact, Named):
        return fact.name in known_names.PMAP
    if isinstance(fact, Partial):
        return any(_leads_to_pmap(inner) for inner in fact.function)
    if isinstance(fact, Class):
        return any(isinstance(f, Mapped) for held in fact.attributes.values() for f in held)
    return isinstance(fact, Mapped)
