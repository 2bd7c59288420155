"""The text that is changed: a whole file, or a notebook's cells one by one."""

from __future__ import annotations

import ast
import dataclasses

import libcst as cst
from libcst.metadata import MetadataWrapper

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Place
from pmapx._src.codemod.decide.plans import Plan
from pmapx._src.codemod.write import imports
from pmapx._src.codemod.write.emitted import Manner
from pmapx._src.codemod.write.first_shards import first_rows
from pmapx._src.codemod.write.site_changer import Changer
from pmapx._src.codemod.write.unused_imports import unused


class Piece:
    """A part of a module that is parsed by itself; ``number`` is its cell's, 0 if it is a file."""

    def __init__(self, number: int, first_line: int, lines: int, tree: cst.Module) -> None:
        """Holds the part's text before, and after changes."""
        self.number = number
        self.before = self.tree = tree
        self._skipped = first_line - 1
        self._last = self._skipped + lines

    def has(self, place: Place) -> bool:
        """Tells whether a place of the module is in this part."""
        return self._skipped < place.line <= self._last

    def here(self, place: Place) -> Place:
        """Returns a place of the module as it is counted in this part."""
        by = self._skipped
        return dataclasses.replace(place, line=place.line - by, end_line=place.end_line - by)

    def planned_here(self, plan: Plan) -> Plan:
        """Returns a plan with its places as they are counted in this part."""
        site = dataclasses.replace(
            plan.site, name=self.here(plan.site.name), whole=self.here(plan.site.whole)
        )
        return dataclasses.replace(plan, site=site)

    def there(self, place: Place) -> Place:
        """Returns a place of this part as it is counted in the module."""
        by = self._skipped
        return dataclasses.replace(place, line=place.line + by, end_line=place.end_line + by)


def change(
    pieces: list[Piece],
    planned: list[Plan],
    removed: dict[Place, str],
    module: Module,
    manner: Manner,
) -> set[Place]:
    """Changes what is planned and what it brings with it; returns the places that were found."""
    rows = first_rows(module) if planned else frozenset()
    used: set[str] = set()
    done: set[Place] = set()
    first: Piece | None = None
    for piece in pieces:
        changer = Changer(
            [piece.planned_here(plan) for plan in planned if piece.has(plan.site.name)],
            {piece.here(place): name for place, name in removed.items() if piece.has(place)},
            frozenset(piece.here(place) for place in rows if piece.has(place)),
        )
        if changer.is_idle:
            continue
        piece.tree = MetadataWrapper(piece.tree, unsafe_skip_copy=True).visit(changer)
        used |= changer.used
        done |= {piece.there(place) for place in changer.done}
        if changer.used and first is None:
            first = piece
    gone = {name for name in used if name.startswith("device_put_")}
    gone |= unused(module, (ast.parse(piece.tree.code) for piece in pieces))
    for piece in pieces:
        piece.tree = imports.without(piece.tree, gone)
    if first is not None:
        first.tree = imports.add(first.tree, used, module, manner)
    return done
