"""States of which some fields differ between devices: these alone keep their device axis.

A map that takes such a state has ``jax.P()`` for it, and ``jax.P(axis)`` for these fields. Between
the passes of the migration, it stands among the axes of the map as a set, which pmap never takes.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable

from pmapx._src.analysis.values import Class, Exported


@dataclasses.dataclass(frozen=True, slots=True)
class Fields:
    """``method`` gives the state with other fields; ``state`` is a variable that has such a state.

    The specs of it get a variable of their own. Where the class of the state has a name at the map,
    ``cls``, they are an object of it, and ``every`` has all of its fields.
    """

    names: tuple[str, ...]
    method: str
    state: str = ""
    cls: str = ""
    every: tuple[str, ...] = ()

    @property
    def specs(self) -> str:
        return f"{self.state}_specs"

    def with_each(self, state: str, text: Callable[[str], str], of: str = "") -> str:
        """Returns the text of a state with other fields, each made of its text.

        >>> Fields(("stats",), "replace").with_each("state", lambda field: f"first({field})")
        'state.replace(stats=first(state.stats))'
        """
        parts = [f"{name}={text(f'{of or state}.{name}')}" for name in self.names]
        return f"{state}.{self.method}({', '.join(parts)})"

    def given(self, call: ast.expr) -> list[ast.expr]:
        """Returns what a call that makes such a state gives these fields, none if not to all."""
        if not isinstance(call, ast.Call) or any(isinstance(a, ast.Starred) for a in call.args):
            return []
        found = {keyword.arg: keyword.value for keyword in call.keywords}
        if isinstance(call.func, ast.Name) and call.func.id == self.cls:
            found |= dict(zip(self.every, call.args, strict=False))
        elif not isinstance(call.func, ast.Attribute) or call.func.attr != self.method:
            return []
        return [found[name] for name in self.names] if set(self.names) <= set(found) else []

    @property
    def axes(self) -> set[str]:
        """How it stands among the axes of a map."""
        return {"/".join((self.state, self.method, self.cls, *self.every, "", *self.names))}


def read(axes: set[str]) -> Fields:
    """Returns what stands among the axes of a map."""
    state, method, cls, *rest = next(iter(axes)).split("/")
    end = rest.index("")
    return Fields(tuple(rest[end + 1 :]), method, state, cls, tuple(rest[:end]))


def names_of(cls: Class) -> tuple[str, ...] | None:
    """Returns the fields that an object of a class is made of, in order; None if of more."""
    is_derived = any(isinstance(f, (Class, Exported)) for base in cls.bases for f in base)
    if is_derived or cls.body.keys() & {"__init__", "__new__", "__post_init__"}:
        return None
    return tuple(
        each.target.id
        for each in cls.node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and "ClassVar" not in ast.unparse(each.annotation)
    )


def is_tuple(cls: Class) -> bool:
    """Tells whether the objects of a class are tuples of its fields, in their order."""
    return any(ast.unparse(base).endswith("NamedTuple") for base in cls.node.bases)


def replacing(cls: Class) -> str:
    """Returns the method that gives an object of a class with other fields, "" if none is known."""
    if is_tuple(cls):
        return "_replace"
    made = [ast.unparse(each) for each in cls.node.decorator_list]
    return "replace" if any("struct.dataclass" in each or "chex" in each for each in made) else ""


def is_tree(cls: Class) -> bool:
    """Tells whether specs can be an object of a class: all of its fields are parts of a tree."""
    own = [each.value for each in cls.node.body if isinstance(each, ast.AnnAssign)]
    return bool(replacing(cls)) and not any(isinstance(each, ast.Call) for each in own)
