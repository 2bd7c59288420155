"""States of which some fields differ between devices: these alone keep their device axis.

A map that takes such a state has ``jax.P()`` for it, and ``jax.P(axis)`` for these fields. Between
the passes of the migration, it stands among the axes of the map as a set, which pmap never takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, slots=True)
class Fields:
    """``method`` gives the state with other fields; ``state`` is a variable that has such a state.

    The specs of it get a variable of their own. Where the map is made before there is a state,
    ``state`` is the argument, and its specs are made when the map is traced.
    """

    names: tuple[str, ...]
    method: str
    state: str = ""
    is_argument: bool = False

    @property
    def specs(self) -> str:
        return f"{self.state}_specs"

    def text(self, axis: str) -> str:
        """Returns the text of the specs, for a map over the axis of this text."""
        return self.made(axis) if self.is_argument else self.specs

    def made(self, axis: str) -> str:
        """Returns the text that makes the specs.

        >>> Fields(("stats",), "replace", "state").made("'i'")
        "jax.tree.map(lambda _: jax.P(), state).replace(stats=jax.P('i'))"
        """
        specs = f"jax.tree.map(lambda _: jax.P(), {self.state})"
        return self.with_each(specs, lambda field: f"jax.P({axis})")

    def with_each(self, state: str, text: Callable[[str], str], of: str = "") -> str:
        """Returns the text of a state with other fields, each made of its text.

        >>> Fields(("stats",), "replace").with_each("state", lambda field: f"first({field})")
        'state.replace(stats=first(state.stats))'
        """
        parts = [f"{name}={text(f'{of or state}.{name}')}" for name in self.names]
        return f"{state}.{self.method}({', '.join(parts)})"

    @property
    def axes(self) -> set[str]:
        """How it stands among the axes of a map."""
        mark = "*" if self.is_argument else ""
        return {"/".join((mark + self.state, self.method, *self.names))}


def read(axes: set[str]) -> Fields:
    """Returns what stands among the axes of a map."""
    state, method, *names = next(iter(axes)).split("/")
    return Fields(tuple(names), method, state.removeprefix("*"), state.startswith("*"))


def of_arguments(axes: object) -> list[str]:
    """Returns the arguments of a map that its specs are made of when it is traced."""
    several = axes if isinstance(axes, tuple) else (axes,)
    found = [read(axis) for axis in several if isinstance(axis, set)]
    return [each.state for each in found if each.is_argument]
