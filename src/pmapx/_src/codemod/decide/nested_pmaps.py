"""Which pmap is met inside which: one written as the function of another, or called in one."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator

from pmapx._src.analysis.definitions import bound
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site
from pmapx._src.analysis.values import Bound, Function, Mapped, Partial, Place, Value
from pmapx._src.codemod.decide.specs import Layout


@dataclasses.dataclass(frozen=True, slots=True)
class Nesting:
    """Two sites; ``may_close`` if the inner function is defined where it can use outer values.

    ``outer`` is None if the inner one is called by a function that something elsewhere maps.
    """

    inner: Place
    outer: Place | None
    may_close: bool = False

    @property
    def is_in_one_file(self) -> bool:
        """Whether both are in the same file."""
        return self.outer is not None and self.inner.path == self.outer.path

    def has(self, site: Site) -> bool:
        """Returns whether a site is one of the two."""
        return bool(site.places & {self.inner, self.outer})


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """Two maps, one in the other, that are one over a mesh of two axes.

    The argument at ``sized`` has both as its leading axes. ``indexed`` are arguments of the inner
    map that the outer function has for all of its axis, ``gathered`` calls whose results it uses.
    """

    outer: Site
    inner: Site
    layout: Layout
    axes: tuple[str, str]
    sized: int
    # The text of the two sizes, if it is seen.
    sizes: str = ""
    is_called: bool = False
    indexed: tuple[ast.expr, ...] = ()
    gathered: tuple[ast.expr, ...] = ()


def nestings(modules: Iterable[Module]) -> frozenset[Nesting]:
    """Returns all nestings of a program."""
    return frozenset(nesting for module in modules for nesting in _of_one(module))


def _of_one(module: Module) -> Iterator[Nesting]:
    for making in module.facts.makings.values():
        if making.is_nested:
            for inner in making.function:
                if isinstance(inner, Mapped):
                    yield Nesting(inner.site, making.site)
    mapped = module.project.mapped
    for call in module.facts.invocations.values():
        if not call.is_under_map:
            continue
        around = [each for each in module.functions_around(call.node) if each in mapped]
        for function in around:
            closes = any(_may_close(inner, function) for inner in _nodes(call.mapped.function))
            yield Nesting(call.mapped.site, mapped[function], closes)
        if not around:
            yield from _by_a_call(call.mapped.site, set(mapped.values()))


def _by_a_call(inner: Place, mapped: set[Place]) -> Iterator[Nesting]:
    """Yields the nestings of a map that is called by something mapped, which any may be."""
    others = mapped - {inner}
    if all(place.path == inner.path for place in others):
        yield from (Nesting(inner, outer) for outer in others)
    else:
        yield Nesting(inner, None)


def _nodes(known: Value) -> Iterator[ast.AST]:
    for fact in known:
        if isinstance(fact, Function):
            yield fact.node
        elif isinstance(fact, Bound):
            yield fact.function.node
        elif isinstance(fact, (Partial, Mapped)):
            yield from _nodes(fact.function)


def _may_close(inner: ast.AST, outer: ast.AST) -> bool:
    """Returns whether a function in another uses names that the other binds."""
    if not any(node is inner for node in ast.walk(outer)):
        return False
    own = {id(node) for node in ast.walk(inner)}
    around = bound(node for node in ast.walk(outer) if id(node) not in own)
    used = {
        node.id
        for node in ast.walk(inner)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return bool((used - bound(ast.walk(inner))) & around)
