"""Which pmap is met inside which: one written as the function of another, or called in one."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator

from pmapx.migrate.module import Module
from pmapx.migrate.sites import Site
from pmapx.migrate.values import Bound, Function, Mapped, Partial, Place, Value


@dataclasses.dataclass(frozen=True, slots=True)
class Nesting:
    """Two sites; ``may_close`` if the inner function is defined where it can use outer values."""

    inner: Place
    outer: Place
    may_close: bool = False

    def has(self, site: Site) -> bool:
        """Tells whether a site is one of the two."""
        return bool(site.places & {self.inner, self.outer})


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
            within = any(_is_within(inner, function) for inner in _nodes(call.mapped.function))
            yield Nesting(call.mapped.site, mapped[function], within)
        if not around:
            # It is called by something that is mapped: any of them may be the one.
            for outer in set(mapped.values()):
                if outer != call.mapped.site:
                    yield Nesting(call.mapped.site, outer)


def _nodes(known: Value) -> Iterator[ast.AST]:
    for fact in known:
        if isinstance(fact, Function):
            yield fact.node
        elif isinstance(fact, Bound):
            yield fact.function.node
        elif isinstance(fact, (Partial, Mapped)):
            yield from _nodes(fact.function)


def _is_within(inner: ast.AST, outer: ast.AST) -> bool:
    return any(node is inner for node in ast.walk(outer))
