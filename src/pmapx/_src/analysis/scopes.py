"""The names that are bound where a statement runs, and what each holds."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from pmapx._src.analysis.definitions import Definition, Reaching
from pmapx._src.analysis.values import UNKNOWN, Donated, Value, join

# What names hold at one point, and which bindings of them reach it.
State = tuple[dict[str, Value], dict[str, Reaching]]


class Environment:
    """One scope; attribute paths such as ``self.state`` are names in it too.

    ``node`` is the module, class or function; a comprehension, which has none, belongs to the scope
    around it.
    """

    def __init__(self, around: Environment | None = None, node: ast.AST | None = None) -> None:
        self.names: dict[str, Value] = {}
        self.definitions: dict[str, Reaching] = {}
        self._has_paths = False
        self.around = around
        self.node = node
        self.is_class = isinstance(node, ast.ClassDef)
        self.star_imports: list[str] = []
        # The scopes of names that were declared ``global`` or ``nonlocal``.
        self.declared: dict[str, Environment] = {}
        self.parameters: frozenset[str] = frozenset()
        # The first parameter of a method, and what its attributes held on the paths that ended.
        self.self_name = ""
        self.left: dict[str, set[Definition]] = {}
        # Whether what runs here is seen to be traced by jit, or mapped by pmap.
        self.is_under_jit: bool = around is not None and around.is_under_jit
        self.is_under_map: bool = around is not None and around.is_under_map
        # Whether the function was read to its end, and its names are all bound.
        self.is_finished = False

    @property
    def state(self) -> State:
        return self.names, self.definitions

    def enter(self, state: State) -> None:
        """Goes on from a state, which stays as it is."""
        self.names, self.definitions = dict(state[0]), dict(state[1])

    def merge(self, states: Sequence[State]) -> None:
        """Goes on from any of several states."""
        self.names = joined([names for names, _ in states])
        self.definitions = states[0][1]
        if len(states) > 1:
            self.merge_definitions(states)

    def merge_definitions(self, states: Sequence[State]) -> None:
        """Lets the bindings of any of several states reach this point."""
        merged: dict[str, Reaching] = {}
        for name in dict.fromkeys(name for _, definitions in states for name in definitions):
            held = [definitions.get(name) for _, definitions in states]
            found = frozenset().union(*filter(None, held))
            if "." in name and any(each != found for each in held):
                # On some paths the attribute has what it had before.
                self.left.setdefault(name, set()).update(found)
            else:
                merged[name] = found
        self.definitions = merged

    def leave_attributes(self) -> None:
        """Notes that other methods see the object now, and may change it."""
        scope = self.function_scope
        for path in [path for path in scope.definitions if "." in path]:
            scope.left.setdefault(path, set()).update(scope.definitions.pop(path))

    @property
    def function_scope(self) -> Environment:
        """The scope of the function, class or module that this is part of."""
        scope = self
        while scope.node is None and scope.around is not None:
            scope = scope.around
        return scope

    @property
    def visible(self) -> Environment:
        """The scope whose names a function sees that is made here, which a class's are not."""
        scope = self.function_scope
        while scope.is_class and scope.around is not None:
            scope = scope.around.function_scope
        return scope

    def reaching(self, path: str) -> Reaching | None:
        """Returns the bindings of a name that reach this point, None if it is bound elsewhere."""
        scope = self
        while path not in scope.definitions and scope.node is None and scope.around is not None:
            scope = scope.around
        return scope.definitions.get(path)

    def declare(self, name: str, *, is_global: bool) -> None:
        """Makes a name that of the module, or of the function around that binds it."""
        scope = None if is_global else self.around
        while scope is not None and (scope.is_class or name not in scope.names):
            scope = scope.around
        self.declared[name] = scope or self.outermost

    def find(self, name: str) -> Value | None:
        """Returns what the innermost scope that binds a name holds, or None."""
        if name in self.names:
            return self.names[name]
        scope = self.around
        while scope is not None:
            # A class's names are not seen from the functions in it.
            if not scope.is_class and name in scope.names:
                return scope.names[name]
            scope = scope.around
        return None

    def scope_of(self, name: str) -> Environment | None:
        """Returns the innermost scope that binds a name as it is seen here, or None."""
        scope: Environment | None = self.declared.get(name, self)
        while scope is not None and (
            name not in scope.names or (scope.is_class and scope is not self)
        ):
            scope = scope.around
        return scope

    def is_parameter(self, name: str) -> bool:
        """Returns whether a name is bound by the parameters of a function."""
        scope = self.scope_of(name)
        return scope is not None and name in scope.parameters

    @property
    def outermost(self) -> Environment:
        scope = self
        while scope.around is not None:
            scope = scope.around
        return scope

    def bind(self, name: str, held: Value) -> None:
        """Binds a name here, or in the scope that it was declared to be of."""
        owner = self.declared.get(name)
        if owner is not None:
            owner.names[name] = join(owner.names.get(name, UNKNOWN), held)
            return
        if name in self.names:
            self.forget_below(name)
        self.names[name] = held

    def set_path(self, path: str, held: Value) -> None:
        """Notes what a name or an attribute path holds here, in whatever scope the name is."""
        self.names[path] = held
        self._has_paths = self._has_paths or "." in path

    def forget_below(self, name: str) -> None:
        """Drops what is known of the attributes of a name that is bound anew."""
        if not self._has_paths:
            return
        prefix = name + "."
        for known in [known for known in self.names if known.startswith(prefix)]:
            del self.names[known]


def joined(branches: Iterable[dict[str, Value]]) -> dict[str, Value]:
    """Returns what names hold after one of several branches."""
    first, *others = several = list(branches)
    if not others:
        return first
    names, known = dict(first), first.get
    for branch in others:
        # Most names are bound in none of the branches, and hold what they held before.
        changed = [name for name, held in branch.items() if known(name) is not held]
        for name in (*changed, *(first.keys() - branch.keys())):
            names[name] = _joined_name(name, several)
    return names


def _joined_name(name: str, branches: list[dict[str, Value]]) -> Value:
    held = [branch.get(name, UNKNOWN) for branch in branches]
    for each in held:
        for fact in each:
            if type(fact) is Donated:
                return join(*[_with_doubt(value, held) for value in held])
    return join(*held)


def _with_doubt(held: Value, others: list[Value]) -> Value:
    """Marks a donation that only some branches made."""
    return frozenset(
        Donated(fact.by, fact.argument, on_every_path=False)
        if isinstance(fact, Donated)
        and not all(any(isinstance(f, Donated) for f in other) for other in others)
        else fact
        for fact in held
    )
