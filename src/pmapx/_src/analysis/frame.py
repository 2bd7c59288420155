"""Where reading stands: the function being read, its names, and who called it."""

from __future__ import annotations

import ast
import dataclasses
from typing import TYPE_CHECKING

from pmapx._src.analysis.scopes import Environment
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
    # Names at each break and continue, a list a loop.
    loop_exits: list[list[dict[str, Value]]] = dataclasses.field(default_factory=list)
    guards: int = 0
    # The tree_map that is applying this function to leaves, and its module.
    tree_call: tuple[Module, ast.expr] | None = None


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
