"""Imports of pmap that nothing uses any more."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Exported


def unused(module: Module, after: Iterable[ast.Module]) -> frozenset[str]:
    """Returns the names under which pmap was imported and used, and is not used now.

    One that another file of the project may take from here is kept, as is all that a package's
    ``__init__`` imports.
    """
    if os.path.basename(module.path) == "__init__.py":
        return frozenset()
    imported = {
        reference.node.asname or reference.node.name
        for reference in module.facts.references.values()
        if reference.name in known_names.PMAP and isinstance(reference.node, ast.alias)
    }
    imported = {name for name in imported if not _is_taken_from(module, name)}
    if not imported:
        return frozenset()
    before = _used([module.source.tree])
    return frozenset((imported & before) - _used(after))


def _used(trees: Iterable[ast.Module]) -> set[str]:
    found: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                # __all__, getattr and annotations in quotes.
                found.add(node.value)
    return found


def _is_taken_from(module: Module, name: str) -> bool:
    """Tells whether another file may import a name from a module, or reach it as an attribute."""
    if "pmap" not in name:
        # A file that has no word of those that are looked for was not read.
        return True
    for other in module.project.modules.values():
        if other is None or other is module:
            continue
        if module.path in other.env.star_imports:
            return True
        for held in other.env.names.values():
            if Exported(module.path, name) in held:
                return True
            if Exported(module.path, "") in held and f".{name}" in other.source.text:
                return True
    return False
