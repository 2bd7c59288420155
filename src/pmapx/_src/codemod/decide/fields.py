"""States of which some fields differ between devices: these alone keep their device axis.

A map that takes such a state has ``jax.P()`` for it, and ``jax.P(axis)`` for these fields. Between
the passes of the migration, it stands among the axes of the map as a set, which pmap never takes.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from typing import Any

from pmapx._src.analysis.values import Class, Exported


@dataclasses.dataclass(frozen=True, slots=True)
class Fields:
    """``method`` gives the state with other fields; ``state`` is a variable that has such a state.

    The specs of it get a variable of their own. Where the class of the state has a name at the map,
    ``cls``, they are an object of it, and ``every`` has all of its fields. What a map gives may
    have such a state in a field: ``inner`` has the fields of each that is one.
    """

    names: tuple[str, ...]
    method: str
    state: str = ""
    cls: str = ""
    every: tuple[str, ...] = ()
    inner: tuple[tuple[str, Fields], ...] = ()

    @property
    def specs(self) -> str:
        """The variable of its specs."""
        return f"{self.state}_specs"

    def spec(self, axis: str) -> str:
        """Returns the text of its specs, by the text of the axis' name."""
        return self.specs if self.state else f"{self.cls}({', '.join(self.each_spec(axis))})"

    def each_spec(self, axis: str) -> list[str]:
        """Returns the spec of each field, as the class takes them."""
        inner = {name: each.spec(axis) for name, each in self.inner}
        own = dict.fromkeys(self.names, f"jax.P({axis})")
        return [f"{name}={(own | inner).get(name, 'jax.P()')}" for name in self.every]

    def axis(self, name: str) -> object:
        """Returns the axis of a field."""
        inner = dict(self.inner)
        return inner[name].axes if name in inner else 0

    def with_each(self, state: str, text: Callable[[str, object], str], of: str = "") -> str:
        """Returns the text of a state with other fields, each made of its text and its axis.

        >>> Fields(("stats",), "replace").with_each("state", lambda field, axis: f"first({field})")
        'state.replace(stats=first(state.stats))'
        """
        parts = [f"{n}={text(f'{of or state}.{n}', self.axis(n))}" for n in self.names]
        return f"{state}.{self.method}({', '.join(parts)})"

    def given(self, call: ast.expr) -> dict[str, ast.expr]:
        """Returns what a call that makes such a state gives these fields, none if not to all."""
        if not isinstance(call, ast.Call) or any(isinstance(a, ast.Starred) for a in call.args):
            return {}
        found = {keyword.arg: keyword.value for keyword in call.keywords}
        if isinstance(call.func, ast.Name) and call.func.id == self.cls:
            found |= dict(zip(self.every, call.args, strict=False))
        elif not isinstance(call.func, ast.Attribute) or call.func.attr != self.method:
            return {}
        return {n: found[n] for n in self.names} if set(self.names) <= set(found) else {}

    @property
    def axes(self) -> set[str]:
        """How it stands among the axes of a map."""
        # Without quotes, by which a file shows which of them it has.
        return {repr(dataclasses.astuple(self)).replace("'", "|")}


def read(axes: set[str]) -> Fields:
    """Returns what stands among the axes of a map."""
    return _read(ast.literal_eval(next(iter(axes)).replace("|", "'")))


def _read(known: tuple[Any, ...]) -> Fields:
    *own, inner = known
    return dataclasses.replace(
        Fields(*own), inner=tuple((name, _read(each)) for name, each in inner)
    )


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
