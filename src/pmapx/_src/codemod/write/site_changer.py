"""Puts the new text at each planned place of a file, and touches nothing else."""

from __future__ import annotations

import libcst as cst
from libcst.metadata import PositionProvider

from pmapx._src.analysis.values import Place
from pmapx._src.codemod.decide.plans import Plan
from pmapx._src.codemod.write.spelling import Spelling


class Changer(cst.CSTTransformer):
    """Changes the planned places; ``used`` are the functions that the new texts call."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(
        self, planned: list[Plan], removed: dict[Place, str], rows: frozenset[Place]
    ) -> None:
        """Knows the places by where they begin and end; ``rows`` are first rows to be taken."""
        super().__init__()
        self.used: set[str] = set()
        self.done: set[Place] = set()
        self._calls = {_span(plan.site.whole): plan for plan in planned if plan.form == "jit"}
        self._decorators = {
            _span(plan.site.whole): plan for plan in planned if plan.form == "decorator"
        }
        self._names = {_span(plan.site.name): plan.site.name for plan in planned
                       if plan.form == "name"}  # fmt: skip
        self._removed = {_span(place): (place, name) for place, name in removed.items()}
        self._rows = {_span(place) for place in rows}
        self._spelling = Spelling(cst.Module([]))
        self._blocks: list[str] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be changed."""
        return not (self._calls or self._decorators or self._names or self._removed or self._rows)

    def visit_Module(self, node: cst.Module) -> None:
        """Notes the file's indentation and line ends."""
        self._spelling = Spelling(node)
        self._indent = node.default_indent

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        """Goes one block deeper."""
        self._blocks.append(self._indent if node.indent is None else node.indent)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        """Leaves a block."""
        self._blocks.pop()
        return updated_node

    def leave_Subscript(
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        """Rewrites ``x[0]``."""
        if self._span_of(original_node) not in self._rows:
            return updated_node
        return self._first_row(updated_node, updated_node.value)

    def _first_row(
        self, whole: cst.Subscript | cst.Call, base: cst.BaseExpression
    ) -> cst.BaseExpression:
        self.used.add("first_row")
        return cst.Call(cst.Name("first_row"), [cst.Arg(base)], lpar=whole.lpar, rpar=whole.rpar)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Rewrites ``jax.pmap(f, ...)`` and ``jax.tree.map(lambda x: x[0], ...)``."""
        plan = self._calls.get(self._span_of(original_node))
        if plan is None:
            if self._span_of(original_node) not in self._rows:
                return updated_node
            if self._spelling.has_comments(updated_node):
                return updated_node
            return self._first_row(updated_node, updated_node.args[1].value)
        if plan.layout is None and self._spelling.has_comments(updated_node):
            changed = self._spelling.renamed_inside(updated_node, plan, "map_rows")
            self.used.add("map_rows")
        else:
            changed = self._spelling.jitted(updated_node, plan, "".join(self._blocks))
            self.used.update(plan.functions)
        self.done.add(plan.site.name)
        return changed

    def leave_Decorator(
        self, original_node: cst.Decorator, updated_node: cst.Decorator
    ) -> cst.Decorator | cst.FlattenSentinel[cst.Decorator]:
        """Rewrites ``@functools.partial(jax.pmap, ...)``."""
        plan = self._decorators.get(self._span_of(original_node.decorator))
        if plan is None:
            return updated_node
        self.done.add(plan.site.name)
        if plan.layout is None and self._spelling.has_comments(updated_node.decorator):
            self.used.add("map_rows")
            inside = self._spelling.renamed_inside(updated_node.decorator, plan, "map_rows")
            return updated_node.with_changes(decorator=inside)
        self.used.update(plan.functions)
        block = "".join(self._blocks)
        return cst.FlattenSentinel(self._spelling.decorators(updated_node, plan, block))

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Puts another function in the place of a name."""
        return self._renamed(original_node, updated_node)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        """Puts another function in the place of ``jax.pmap``."""
        return self._renamed(original_node, updated_node)

    def _renamed(
        self, original: cst.Name | cst.Attribute, updated: cst.Name | cst.Attribute
    ) -> cst.BaseExpression:
        span = self._span_of(original)
        if span in self._names:
            self.done.add(self._names[span])
            self.used.add("map_rows")
            return cst.Name("map_rows", lpar=updated.lpar, rpar=updated.rpar)
        if span in self._removed:
            place, name = self._removed[span]
            self.done.add(place)
            self.used.add(name)
            return cst.Name(name, lpar=updated.lpar, rpar=updated.rpar)
        return updated

    def _span_of(self, node: cst.CSTNode) -> tuple[int, int, int, int]:
        found = self.get_metadata(PositionProvider, node)
        return (found.start.line, found.start.column, found.end.line, found.end.column)


def _span(place: Place) -> tuple[int, int, int, int]:
    return (place.line, place.column, place.end_line, place.end_column)
