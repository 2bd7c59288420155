"""Fixes for a function that was renamed and now takes its options by keyword."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping

from pmapx._src.analysis import known_names, syntax
from pmapx._src.analysis.facts import Reference
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Fix
from pmapx._src.lint.renames import spelled
from pmapx._src.source.rewriting import call_edits, import_edits
from pmapx._src.source.rewriting.edits import Edit, between, replacing, starts


@dataclasses.dataclass(frozen=True, slots=True)
class MovedFunction:
    """The old function ``module.name``, and the new one.

    ``parameters`` are the names of its positions, None where the new one has a position too.
    ``keywords`` have other names now, a use with one of ``refused`` is not fixed, and the fix of
    one with ``unsafe`` is unsafe.
    """

    module: str
    name: str
    new: str
    parameters: tuple[str | None, ...]
    keywords: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    unsafe: frozenset[str] = frozenset()

    @property
    def old(self) -> str:
        return f"{self.module}.{self.name}"

    def fix(self, module: Module, reference: Reference) -> Fix | None:
        """Returns the fix of a use, or of an import with all uses that go through it."""
        if isinstance(reference.node, ast.alias):
            return self._imported(module, reference)
        named = spelled(module, reference, self.new)
        edits = self._used(module, reference, named)
        return Fix(tuple(edits), self._is_safe(module, [reference])) if edits else None

    def _imported(self, module: Module, reference: Reference) -> Fix | None:
        alias, statement = reference.node, module.parent(reference.node)
        if not isinstance(alias, ast.alias) or reference.name not in (self.module, self.old):
            return None
        bound = alias.asname or alias.name
        leaf = self.new.rpartition(".")[2]
        if isinstance(statement, ast.ImportFrom):
            is_renamed = alias.asname is None and leaf != bound and _is_free(module, leaf)
            moves = {alias: self.new}
            edits = import_edits.moved(module.source, statement, moves, is_renamed=is_renamed)
            new = leaf if is_renamed else bound
        elif isinstance(statement, ast.Import) and alias.asname is None:
            edits = [replacing(module.place(alias), "jax")]
            bound, new = "jax", self.new
        else:
            return None
        uses = {
            other.node: other
            for other in module.facts.references.values()
            if other.name == self.old and other.by != "import"
        }
        if bound != "jax" and not _are_all(module, bound, uses):
            return None
        for use in uses.values():
            stays = isinstance(use.node, ast.Name) and new == bound
            used = self._used(
                module, use, [] if stays else [replacing(module.place(use.node), new)]
            )
            if used is None:
                return None
            edits += used
        return Fix(tuple(edits), self._is_safe(module, list(uses.values())))

    def _used(
        self, module: Module, reference: Reference, named: list[Edit] | None
    ) -> list[Edit] | None:
        """Returns the edits of one call, one ``partial`` or one decorator of the old function."""
        call = module.parent(reference.node)
        if named is not None and reference.node in getattr(call, "decorator_list", ()):
            return named
        if named is None or not isinstance(call, ast.Call):
            return None
        names: tuple[str | None, ...] = self.parameters
        if call.func is not reference.node:
            called = module.facts.calls.get(call)
            is_partial = called is not None and called.names & known_names.PARTIAL
            if not is_partial or call.args[:1] != [reference.node]:
                return None
            names = (None, *self.parameters)
        edits = call_edits.by_keyword(module.source, call, names)
        if edits is None:
            return None
        for keyword in call.keywords:
            if keyword.arg is None or keyword.arg in self.refused:
                return None
            if keyword.arg in self.keywords:
                line, column = starts(module.place(keyword))
                end = (line, column + len(keyword.arg))
                edits.append(between((line, column), end, self.keywords[keyword.arg]))
        return [*named, *edits]

    def _is_safe(self, module: Module, uses: list[Reference]) -> bool:
        for use in uses:
            call = module.parent(use.node)
            if isinstance(call, ast.Call):
                by_position = self.parameters[: len(call.args) - (call.func is not use.node)]
                given = {keyword.arg for keyword in call.keywords} | set(by_position)
                if given & self.unsafe:
                    return False
        return True


def _are_all(module: Module, name: str, uses: dict[ast.AST, Reference]) -> bool:
    """Returns whether a name stands for nothing but the uses that were seen."""
    seen = {part for use in uses for part in syntax.walk(use) if isinstance(part, ast.Name)}
    return name not in module.bound_names and all(
        node in seen for node in module.nodes if isinstance(node, ast.Name) and node.id == name
    )


def _is_free(module: Module, name: str) -> bool:
    """Returns whether nothing in a file is called by a name."""
    return module.env.find(name) is None and not any(
        (isinstance(node, ast.Name) and node.id == name)
        or (isinstance(node, ast.arg) and node.arg == name)
        or (isinstance(node, ast.alias) and (node.asname or node.name) == name)
        or (isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name)
        for node in module.nodes
    )
