"""Where reading stands: the function being read, its names, and who called it."""

from __future__ import annotations

import ast
import dataclasses
from typing import TYPE_CHECKING

from pmapx._src.analysis.definitions import Definition, Step
from pmapx._src.analysis.scopes import Environment, State
from pmapx._src.analysis.values import UNKNOWN, Function, Value

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

    def get(self, position: int, name: str) -> Value:
        """Returns an argument that may be given by position or by name."""
        if position < len(self.args):
            return self.args[position]
        return self.keywords.get(name, UNKNOWN)

    def has(self, position: int, name: str) -> bool:
        """Tells whether an argument is given."""
        return position < len(self.args) or name in self.keywords
