"""Finding names that JAX removed or is about to."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from pmapx._src.analysis import lookup
from pmapx._src.analysis.facts import Reference
from pmapx._src.analysis.module import Module


def uses_of(module: Module, table: Mapping[str, str]) -> Iterator[tuple[Reference, str]]:
    """Gives each place that names an entry of the table or something below one, and the entry.

    A name that was imported is reported where it is imported, and not at each use. Code that
    asks first whether the name is there (``try``, ``hasattr``, a version) is left alone.
    """
    references = module.facts.references.values()
    entries = {
        name: entry
        for name in {reference.name for reference in references}
        if (entry := _entry(name, table)) is not None
    }
    if not entries:
        return
    imported = {
        reference.name
        for reference in references
        if reference.by == "import" and reference.name in entries
    }
    for reference in references:
        if reference.is_guarded or reference.name not in entries:
            continue
        if _is_told_before(module, reference, table):
            continue
        is_below_import = any(
            reference.name == name or reference.name.startswith(name + ".") for name in imported
        )
        if reference.by == "import" or not is_below_import:
            yield reference, entries[reference.name]


def _is_told_before(module: Module, reference: Reference, table: Mapping[str, str]) -> bool:
    """``env = maps.env`` is reported, and ``env.mesh`` after it is not."""
    written = lookup.dotted(reference.node)
    if reference.by == "import" or written is None:
        return False
    variable, *attributes = written.split(".")
    stands_for = reference.name.split(".")[: -len(attributes) or None]
    if _entry(".".join(stands_for), table) is None:
        return False
    return any(
        isinstance(node, ast.Name) and node.id == variable and isinstance(node.ctx, ast.Store)
        for node in ast.walk(module.source.tree)
    )


def _entry(name: str, table: Mapping[str, str]) -> str | None:
    while name:
        if name in table:
            return name
        name = name.rpartition(".")[0]
    return None


def mentions(module: Module, flag: str) -> Iterator[ast.AST]:
    """Gives the string literals and attributes that name a flag; docstrings do not count."""
    if flag not in module.source.text.lower():
        return
    for node in ast.walk(module.source.tree):
        if isinstance(node, ast.Attribute) and node.attr == flag:
            yield node
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_docstring = isinstance(module.parent(node), ast.Expr)
            if flag in node.value.lower() and not is_docstring:
                yield node
