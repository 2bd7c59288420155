"""The pmaps of a program as they are called: their axes, their arguments, and where options go."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from pmapx.migrate.facts import Making
from pmapx.migrate.module import Module
from pmapx.migrate.replicated.evidence import Evidence, Record
from pmapx.migrate.values import (
    Bound,
    Class,
    Function,
    Mapped,
    Partial,
    Place,
    Value,
    constant,
    integers,
)

SiteKey = tuple[str, int, int]
WRAPPER = "it is mapped through a wrapper, whose other users would change too"
BARE = "it is mapped by a decorator without options: write functools.partial(jax.pmap, ...)"
UNPACKED = "its options are unpacked, and cannot be seen"
AXES = "its in_axes or out_axes are not written out"
STATIC = "its static_broadcasted_argnums are not written out"


@dataclasses.dataclass(slots=True, eq=False)
class Map:
    """One use of pmap: ``node`` applies it, ``site`` is where ``jax.pmap`` is written."""

    made_at: Place
    site: Place
    module: Module
    node: ast.AST
    function: Value
    in_axes: object
    out_axes: object
    static: frozenset[int]
    donated: frozenset[int]
    obstacle: str
    record: Record | None
    counts: set[int] = dataclasses.field(default_factory=set)
    has_keywords: bool = False
    reasons: dict[Place, str] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> SiteKey:
        """What tells it from others."""
        return self.made_at.path, self.made_at.line, self.made_at.column

    @property
    def name(self) -> str:
        """The mapped function's name."""
        if self.record is not None and self.record.function:
            return self.record.function
        for function, _ in functions(self.function):
            return function.name
        first = self.node.args[0] if isinstance(self.node, ast.Call) and self.node.args else None
        if isinstance(first, (ast.Name, ast.Attribute)):
            return first.id if isinstance(first, ast.Name) else first.attr
        return "a pmapped function"

    @property
    def parameters(self) -> list[str]:
        """The names of the arguments by position, as far as the definition tells them."""
        for function, taken in functions(self.function):
            arguments = function.node.args
            return [each.arg for each in (*arguments.posonlyargs, *arguments.args)][taken:]
        if self.record is not None:
            found = self.record.names
            return [found.get(str(i), str(i)) for i in range(len(found))]
        return []

    @property
    def arity(self) -> int | None:
        """How many results it gives: None if it is one that is no tuple, -1 if nobody knows."""
        if self.record is not None and self.record.arity != "unknown":
            return self.record.arity  # type: ignore[return-value]
        found = {_arity(function.node) for function, _ in functions(self.function)}
        return found.pop() if len(found) == 1 else -1

    def in_axis(self, index: int) -> object:
        """Returns the axis of an argument, ``...`` if it is not known."""
        if isinstance(self.in_axes, (tuple, list)):
            return self.in_axes[index] if index < len(self.in_axes) else ...
        return self.in_axes

    def out_axis(self, index: int) -> object:
        """Returns the axis of a result, ``...`` if it is not known."""
        if isinstance(self.out_axes, (tuple, list)) and index >= 0:
            return self.out_axes[index] if index < len(self.out_axes) else ...
        return self.out_axes


class Maps:
    """All pmaps of a program, by where they are applied."""

    def __init__(self, modules: Iterable[Module], evidence: Evidence) -> None:
        """Finds where each is applied."""
        self.evidence = evidence
        self._modules = list(modules)
        self._makings: dict[Place, tuple[Module, Making]] = {}
        for module in self._modules:
            for making in module.facts.makings.values():
                self._makings[module.place(making.node)] = (module, making)
        self._maps: dict[SiteKey, Map] = {}
        self._classes = {
            node.name: node
            for module in self._modules
            for node in ast.walk(module.source.tree)
            if isinstance(node, ast.ClassDef)
        }

    @property
    def through_wrappers(self) -> set[str]:
        """The names of functions that are mapped, though not by a pmap that names them."""
        own = {function.node for each in self for function, _ in functions(each.function)}
        mapped = self._modules[0].project.mapped if self._modules else {}
        return {getattr(node, "name", "") for node in mapped if node not in own} - {""}

    def __iter__(self) -> Iterator[Map]:
        """Gives those that are called, and those that are only made."""
        for made_at in sorted(self._makings, key=lambda place: (place.path, place.line)):
            self._of(made_at)
        return iter(self._maps.values())

    def forget(self) -> None:
        """Drops what calls showed, which is found anew in each round."""
        for each in self._maps.values():
            each.counts.clear()
            each.reasons.clear()
            each.has_keywords = False

    def get(self, mapped: Mapped) -> Map | None:
        """Returns the use of pmap that made a function."""
        return self._of(mapped.made_at)

    def by_key(self, key: SiteKey) -> Map:
        """Returns a use of pmap that was seen before."""
        return self._maps[key]

    def family(self, module: Module, node: ast.ClassDef) -> str:
        """Returns the name of the first class that a class derives from, as far as it is known."""
        seen = {node.name}
        while True:
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            known = [name for name in bases if name in self._classes and name not in seen]
            if not known:
                return node.name
            seen.add(known[0])
            node = self._classes[known[0]]

    def family_of(self, cls: Class) -> str:
        """Returns the same for a class that was followed."""
        return self.family(cls.module, cls.node)

    def _of(self, made_at: Place) -> Map | None:
        key = (made_at.path, made_at.line, made_at.column)
        if key not in self._maps:
            if made_at not in self._makings:
                return None
            module, making = self._makings[made_at]
            self._maps[key] = _make(made_at, module, making, self.evidence)
        return self._maps[key]


def _make(made_at: Place, module: Module, making: Making, evidence: Evidence) -> Map:
    options = making.options
    in_axes, out_axes = _axes(options, "in_axes"), _axes(options, "out_axes")
    static = options.get("static_broadcasted_argnums")
    donated = options.get("donate_argnums")
    obstacle = _obstacle(module, making)
    if not obstacle and not (_is_plain(in_axes) and _is_plain(out_axes)):
        obstacle = AXES
    if not obstacle and static is not None and constant(static) is ...:
        obstacle = STATIC
    # What is donated in a way that is not seen may be any argument.
    every = frozenset(range(64))
    is_unknown = donated is not None and constant(donated) is ...
    return Map(
        made_at,
        making.site,
        module,
        making.node,
        making.function,
        in_axes,
        out_axes,
        frozenset(integers(static) if static is not None else ()),
        every if is_unknown else frozenset(integers(donated) if donated is not None else ()),
        obstacle,
        evidence.record(module, making.node),
    )


def _axes(options: Mapping[str, Value], name: str) -> object:
    return constant(options[name]) if name in options else 0


def _is_plain(axes: object) -> bool:
    if isinstance(axes, (tuple, list)):
        return all(axis is None or type(axis) is int for axis in axes)
    return axes is None or type(axes) is int


def _obstacle(module: Module, making: Making) -> str:
    node = making.node
    if not isinstance(node, ast.Call):
        return BARE
    if any(keyword.arg is None for keyword in node.keywords):
        return UNPACKED
    first = node.args[0] if node.args else None
    parent = module.parent(node)
    is_decorator = isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
        node is decorator for decorator in parent.decorator_list
    )
    if not is_decorator and isinstance(first, ast.Name):
        for function in module.functions_around(node):
            arguments = getattr(function, "args", None)
            if arguments is not None and any(
                isinstance(part, ast.arg) and part.arg == first.id for part in ast.walk(arguments)
            ):
                return WRAPPER
    if any(isinstance(arg, ast.Starred) for arg in node.args):
        return UNPACKED
    return ""


def functions(known: Value) -> Iterator[tuple[Function, int]]:
    """Returns the functions that a value may be, each with how many arguments it has already."""
    for fact in known:
        if isinstance(fact, Function):
            yield fact, 0
        elif isinstance(fact, Bound):
            yield fact.function, 1
        elif isinstance(fact, Partial):
            for function, taken in functions(fact.function):
                yield function, taken + len(fact.args)


def _arity(node: ast.AST) -> int | None:
    """Returns how many results a definition gives, -1 if its returns differ or do not tell."""
    if isinstance(node, ast.Lambda):
        return len(node.body.elts) if isinstance(node.body, ast.Tuple) else -1
    found: set[int] = set()
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Return):
            is_tuple = isinstance(part.value, ast.Tuple)
            found.add(len(part.value.elts) if is_tuple else -1)  # type: ignore[union-attr]
        elif not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(part)
    return found.pop() if len(found) == 1 else -1
