"""Where a module names what JAX removed: outside objects, and flags in strings."""

import ast
import functools
from collections.abc import Collection, Iterator

from pmapx._src.analysis.facts import Facts, Reference
from pmapx._src.analysis.interpreter import lookup
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Fix
from pmapx._src.source.rewriting import import_edits


def uses_of(module: Module, names: Collection[str]) -> Iterator[tuple[Reference, str]]:
    """Yields each place that refers to one of the names or to something below it, and the name.

    A name that is imported is reported at its import, not at each use. Code that first asks
    whether the name exists (``try``, ``hasattr``, a version) is left alone.
    """
    if _names_above(module.facts).isdisjoint(names):
        return
    references = module.facts.references.values()
    found = {
        name: entry
        for name in {reference.name for reference in references}
        if (entry := _entry(name, names)) is not None
    }
    imported = {
        reference.name
        for reference in references
        if reference.by == "import" and reference.name in found
    }
    for reference in references:
        if reference.is_guarded or reference.name not in found:
            continue
        if _is_reported_before(module, reference, names):
            continue
        is_below_import = any(
            reference.name == name or reference.name.startswith(name + ".") for name in imported
        )
        if reference.by == "import" or not is_below_import:
            yield reference, found[reference.name]


@functools.lru_cache(maxsize=4)
def _names_above(facts: Facts) -> frozenset[str]:
    """Returns what a module refers to, and all modules and objects that this is in."""
    found: set[str] = set()
    for name in {reference.name for reference in facts.references.values()}:
        while name and name not in found:
            found.add(name)
            name = name.rpartition(".")[0]
    return frozenset(found)


def _is_reported_before(module: Module, reference: Reference, names: Collection[str]) -> bool:
    """``env = maps.env`` is reported, and ``env.mesh`` after it is not."""
    written = lookup.dotted(reference.node)
    if reference.by == "import" or written is None:
        return False
    variable, *attributes = written.split(".")
    stands_for = reference.name.split(".")[: -len(attributes) or None]
    return _entry(".".join(stands_for), names) is not None and variable in module.bound_names


def _entry(name: str, names: Collection[str]) -> str | None:
    while name:
        if name in names:
            return name
        name = name.rpartition(".")[0]
    return None


def mentions(module: Module, flag: str) -> Iterator[ast.AST]:
    """Yields the string literals and attributes that name a flag; docstrings do not count."""
    if flag not in module.source.text.lower():
        return
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and node.attr == flag:
            yield node
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_docstring = isinstance(module.parent(node), ast.Expr)
            if flag in node.value.lower() and not is_docstring:
                yield node


def without_switch(module: Module, node: ast.AST, *, is_safe: bool) -> Fix | None:
    """Returns the fix that deletes the statement which sets a flag, if it does nothing else."""
    parent = module.parent(node)
    target: ast.AST = node
    if isinstance(parent, ast.Subscript) and parent.slice is node:
        target, parent = parent, module.parent(parent)
    if isinstance(parent, ast.Assign) and parent.targets == [target]:
        statement: ast.stmt = parent
    elif isinstance(parent, ast.Call) and parent.args[:1] == [node] and len(parent.args) == 2:
        is_update = isinstance(parent.func, ast.Attribute) and parent.func.attr == "update"
        around = module.parent(parent)
        if not is_update or not isinstance(around, ast.Expr):
            return None
        statement = around
    else:
        return None
    edits = import_edits.removed(module.source, statement, module.parent(statement))
    return Fix(tuple(edits), is_safe)
