"""A module that is read: its source, its names at the end, and the facts seen in it."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

from pmapx.migrate import interpret, names
from pmapx.migrate.environment import Environment
from pmapx.migrate.facts import Facts
from pmapx.migrate.frame import Arguments, Frame
from pmapx.migrate.sources import Source
from pmapx.migrate.values import (
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

if TYPE_CHECKING:
    from pmapx.migrate.project import Project

# Attributes set in one method are read in another, and a function is mapped below its definition:
# what the first reading learns, the second uses.
READINGS = 2
# What one module may cost, in statements read; beyond it calls are no longer followed.
STATEMENTS = 60_000


# A function, what its parameters hold, the tree_map that applies it, and under what it runs.
Key = tuple[Function, frozenset[tuple[str, Value]], tuple["Module", ast.expr] | None, bool, bool]


class Module:
    """One file; ``read()`` fills ``facts``."""

    def __init__(self, source: Source, project: Project, *, is_followed: bool = True) -> None:
        """Holds the source; nothing is read yet. Unless followed, only names are looked at."""
        self.source = source
        self.project = project
        self.facts = Facts()
        self.env = Environment()
        self.attributes: dict[ast.ClassDef, dict[str, Value]] = {}
        self.pending: list[Function] = []
        self.results: dict[Key, Value] = {}
        self.is_followed = is_followed
        self.is_read = False

    @property
    def path(self) -> str:
        """The file's path as the user gave it."""
        return self.source.path

    def read(self) -> None:
        """Follows values through the whole module."""
        project = self.project
        before = project.statements_left, project.readings
        for _ in range(READINGS if self.is_followed else 1):
            self.facts = Facts()
            self.env = Environment()
            self.pending, self.results, project.readings = [], {}, {}
            project.statements_left = STATEMENTS if self.is_followed else 0
            frame = Frame(self, self.env)
            interpret.execute(frame, self.source.tree.body)
            self.read_pending()
        project.statements_left, project.readings = before
        self.is_read = True

    def read_pending(self) -> None:
        """Reads the bodies of functions whether or not anything seen calls them."""
        while self.pending:
            function = self.pending.pop(0)
            frame = Frame(self, function.around)
            interpret.call_function(frame, function, Arguments([], {}), is_alone=True)

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

    def ways_to_pmap(self) -> set[str]:
        """Returns the module's names that lead to pmap or to what it returned."""
        found = {
            name
            for name, held in self.env.names.items()
            if any(_leads_to_pmap(fact) for fact in self._passed_on(held))
        }
        for key, held in self.results.items():
            if any(isinstance(fact, (Mapped, Stacked)) for fact in held):
                found.add(key[0].name)
        return {name for name in found if name.isidentifier()}

    def _passed_on(self, held: Value) -> Value:
        """Looks up a name that this module has from another, once."""
        return join(
            *[
                self.project.exported(fact.path, fact.name)
                if isinstance(fact, Exported) and fact.name
                else value(fact)
                for fact in held
            ]
        )

    def place(self, node: ast.AST) -> Place:
        """Returns where a node stands."""
        return self.source.place(node)

    @functools.cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The parent of each node."""
        found: dict[ast.AST, ast.AST] = {}
        for parent in ast.walk(self.source.tree):
            for child in ast.iter_child_nodes(parent):
                found[child] = parent
        return found

    def functions_around(self, node: ast.AST) -> list[ast.AST]:
        """Returns the functions in whose text a node stands, innermost first."""
        around: list[ast.AST] = []
        parent = self.parents.get(node)
        while parent is not None:
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                around.append(parent)
            parent = self.parents.get(parent)
        return around


def _leads_to_pmap(fact: Fact) -> bool:
    if isinstance(fact, Named):
        return fact.name in names.PMAP
    if isinstance(fact, Partial):
        return any(_leads_to_pmap(inner) for inner in fact.function)
    if isinstance(fact, Class):
        return any(isinstance(f, Mapped) for held in fact.attributes.values() for f in held)
    return isinstance(fact, Mapped)
