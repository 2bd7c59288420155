"""What was seen in a module while values were followed through it; the rules read it."""

from __future__ import annotations

import ast
import dataclasses

from pmapx._src.analysis.definitions import Definitions
from pmapx._src.analysis.values import (
    UNKNOWN,
    Const,
    Donated,
    Gradient,
    Mapped,
    OnDevice,
    Place,
    Stacked,
    Value,
    join,
)


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Reference:
    """A place where an outside object is named; ``by`` is import, attribute or name."""

    node: ast.AST
    name: str
    by: str
    is_guarded: bool
    is_certain: bool


@dataclasses.dataclass(slots=True)
class Call:
    """A call of an outside function, with what is known of its arguments."""

    node: ast.expr
    names: frozenset[str]
    args: list[Value]
    keywords: dict[str, Value]


@dataclasses.dataclass(slots=True)
class Making:
    """A place where pmap is applied, with the options that reach it."""

    node: ast.AST
    site: Place
    function: Value
    options: dict[str, Value]

    @property
    def is_nested(self) -> bool:
        """Whether what is mapped is itself pmapped, and cannot be the method of that name."""
        return bool(self.function) and all(isinstance(fact, Mapped) for fact in self.function)


@dataclasses.dataclass(slots=True)
class Invocation:
    node: ast.expr
    mapped: Mapped
    is_under_jit: bool
    is_under_map: bool


@dataclasses.dataclass(slots=True)
class Indexing:
    """A choice of one shard of a stacked value; ``how`` is index, tree, call or loop."""

    node: ast.AST
    stacked: Stacked
    how: str


class Facts:
    """Everything the rules may ask of one module, each keyed by the node it was seen at."""

    def __init__(self) -> None:
        self.references: dict[ast.AST, Reference] = {}
        self.calls: dict[ast.AST, Call] = {}
        self.makings: dict[ast.AST, Making] = {}
        # The same for each function that came out of it: a wrapper makes one for each of its users.
        self.made: dict[Mapped, Making] = {}
        self.invocations: dict[ast.AST, Invocation] = {}
        self.indexings: dict[ast.AST, Indexing] = {}
        self.donated_uses: dict[ast.AST, Donated] = {}
        self.reductions: dict[ast.AST, Gradient] = {}
        # Operations on a result of pmap and an array on one device.
        self.meetings: dict[ast.AST, tuple[Stacked, OnDevice]] = {}
        # Meshes that a ``with`` statement enters.
        self.entered_meshes: dict[ast.expr, Value] = {}
        self.lowerings: dict[ast.AST, Place] = {}
        self.jitted_maps: dict[ast.AST, Mapped] = {}
        # What each call calls, and the expressions that hold mapped functions and objects.
        self.callees: dict[ast.AST, Value] = {}
        self.holders: dict[ast.AST, Value] = {}
        # Which known counts and calls an expression stands for, such as jax.device_count.
        self.results: dict[ast.AST, frozenset[str]] = {}
        self.definitions = Definitions()
        # Calls that were not followed since a budget was spent, by its name: the first of each.
        self.exhausted: dict[str, Place] = {}

    def is_result(self, node: ast.AST, names: frozenset[str]) -> bool:
        """Returns whether an expression may be the result of one of these functions."""
        return not names.isdisjoint(self.results.get(node, ()))

    def add_call(self, call: Call) -> None:
        """Notes a call; one met again, as in a loop, keeps all that its arguments may be."""
        seen = self.calls.get(call.node)
        if seen is None:
            self.calls[call.node] = call
            return
        seen.names |= call.names
        seen.args = [join(before, now) for before, now in zip(seen.args, call.args, strict=False)]
        for name, held in call.keywords.items():
            seen.keywords[name] = join(seen.keywords.get(name, UNKNOWN), held)

    def add_callee(self, node: ast.AST, callee: Value) -> None:
        """Notes what a call calls; one met again keeps all that it may be.

        None cannot be called: ``self.step = None`` stands for the map until that is made.
        """
        known = callee - {Const(None)}
        self.callees[node] = join(self.callees.get(node, UNKNOWN), known)

    def add_holder(self, node: ast.AST, held: Value) -> None:
        """Notes the mapped functions and objects that an expression may be."""
        self.holders[node] = join(self.holders.get(node, UNKNOWN), held)

    def add_making(self, making: Making) -> None:
        """Notes a use of pmap; a reading that knows the function counts more."""
        seen = self.makings.get(making.node)
        if seen is None or (making.function and not seen.function):
            self.makings[making.node] = making

    def add_invocation(self, call: Invocation) -> None:
        """Notes a call of a map; it is under a transform if any reading of it is."""
        seen = self.invocations.get(call.node)
        if seen is not None:
            call.is_under_jit |= seen.is_under_jit
            call.is_under_map |= seen.is_under_map
        self.invocations[call.node] = call

    def add_indexing(self, indexing: Indexing) -> None:
        """Notes an indexing; the surest view of it counts, and of these the first."""
        seen = self.indexings.get(indexing.node)
        if seen is None or _rank(indexing) < _rank(seen):
            self.indexings[indexing.node] = indexing

    def add_donated_use(self, node: ast.AST, donated: Donated) -> None:
        seen = self.donated_uses.get(node)
        if seen is None or donated.on_every_path > seen.on_every_path:
            self.donated_uses[node] = donated


def _rank(indexing: Indexing) -> tuple[int, bool, str, int, str]:
    """Sets have no order, and a report must not change from run to run."""
    stacked = indexing.stacked
    place = stacked.place
    return (-stacked.confidence, not stacked.from_map, place.path, place.line, stacked.origin)
