"""Stacked values followed through the statements of a program, to every place that uses them.

Other than ``interpret``, which tells what a value may be, this must miss nothing: a use that is not
understood is a reason for the value to stay as it is. Within a function values are followed in the
order of its statements; from one function to another by tables, which are filled in rounds until
they no longer change.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable
from typing import Any

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Place
from pmapx._src.codemod.replicated.body import Body
from pmapx._src.codemod.replicated.groups import (
    NOTHING,
    OTHER,
    Abstract,
    Graph,
    Mixed,
    Pairs,
    Parts,
    Ref,
)
from pmapx._src.codemod.replicated.maps import Maps

MOST_ROUNDS = 12
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
        # What something is that nothing was seen to give: nobody knows, once all was read.
        self.unseen: Abstract = NOTHING
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
            if self.unseen is OTHER and before == self.known.shape():
                self.is_settled = True
                return
            self.unseen = OTHER

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
