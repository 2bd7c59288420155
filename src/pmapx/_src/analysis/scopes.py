"""The names that are bound where a statement runs, and what each holds."""

from __future__ import annotations

from collections.abc import Iterable

from pmapx._src.analysis.values import UNKNOWN, Donated, Value, join


class Environment:
    """One scope; attribute paths such as ``self.state`` are names in it too."""

    def __init__(self, around: Environment | None = None, *, is_class: bool = False) -> None:
        """Starts empty inside ``around``."""
        self.names: dict[str, Value] = {}
        self.around = around
        self.is_class = is_class
        self.star_imports: list[str] = []
        self.global_names: set[str] = set()
        self.parameters: frozenset[str] = frozenset()
        # Whether what runs here is traced by jit, or mapped by pmap, as far as the text says.
        self.is_under_jit: bool = around is not None and around.is_under_jit
        self.is_under_map: bool = around is not None and around.is_under_map

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

    def is_parameter(self, name: str) -> bool:
        """Tells whether a name is bound by the parameters of a function."""
        scope: Environment | None = self
        while scope is not None:
            if name in scope.parameters:
                return True
            if name in scope.names and not (scope.is_class and scope is not self):
                return False
            scope = scope.around
        return False

    @property
    def outermost(self) -> Environment:
        """The module's scope."""
        scope = self
        while scope.around is not None:
            scope = scope.around
        return scope

    def bind(self, name: str, held: Value) -> None:
        """Binds a name here, or in the module if it was declared global."""
        if name in self.global_names:
            module = self.outermost
            module.names[name] = join(module.names.get(name, UNKNOWN), held)
            return
        if name in self.names:
            self.forget_below(name)
        self.names[name] = held

    def forget_below(self, name: str) -> None:
        """Drops what is known of the attributes of a name that is bound anew."""
        prefix = name + "."
        for known in [known for known in self.names if known.startswith(prefix)]:
            del self.names[known]


def joined(branches: Iterable[dict[str, Value]]) -> dict[str, Value]:
    """Returns what names hold after one of several branches."""
    several = list(branches)
    if len(several) == 1:
        return several[0]
    names = set().union(*several)
    return {name: _joined_name(name, several) for name in names}


def _joined_name(name: str, branches: list[dict[str, Value]]) -> Value:
    held = [branch.get(name, UNKNOWN) for branch in branches]
    if any(isinstance(fact, Donated) for value in held for fact in value):
        held = [_with_doubt(value, held) for value in held]
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
