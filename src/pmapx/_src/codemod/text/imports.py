"""Changes to a file's imports: names that come from pmapx, and those that a rewrite replaces."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Mapping, Sequence

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Exported
from pmapx._src.codemod.text.name_uses import name_uses
from pmapx._src.source.rewriting import added_imports, import_edits
from pmapx._src.source.rewriting.edits import Edit, lines_of


def with_imports(module: Module, moved: Mapping[ast.AST, str], edits: Sequence[Edit]) -> list[Edit]:
    """Returns the edits of a file, and those of its imports.

    ``moved`` are the names in ``from ... import`` that are to come from pmapx, each with its name
    there.
    """
    found = list(edits)
    for node in name_uses(module).imports:
        here = {alias: f"pmapx.{moved[alias]}" for alias in node.names if alias in moved}
        found += import_edits.moved(module.source, node, here) if here else []
    plain = [node for node in module.source.tree.body if isinstance(node, ast.Import)]
    is_there = any(alias.name == "pmapx" for node in plain for alias in node.names)
    needs = not is_there and any("pmapx." in edit.text for edit in edits)
    wanted = ["import pmapx"] if needs else []
    changed = lines_of(edits)
    return [
        *found,
        *added_imports.added(module.source, wanted, changed=changed, in_first_cell=True),
    ]


def without_removed(module: Module, used: Collection[str]) -> list[Edit]:
    """Returns the edits that drop imports of functions that JAX removed, where ``used`` has another
    by the name.
    """
    found: list[Edit] = []
    for node in name_uses(module).imports:
        names = [alias for alias in node.names if (alias.asname or alias.name) in used]
        taken = [alias for alias in names if is_of_jax(alias, module)]
        if taken:
            found += import_edits.without(module.source, node, taken, module.parent(node))
    return found


def without_local(module: Module, lines: Collection[str]) -> list[Edit]:
    """Returns the edits that delete imports inside functions of what the file imports now.

    Such an import would make the name local to its function, unbound above it.
    """
    found = [node for node in module.nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    return [
        edit
        for node in found
        if ast.unparse(node) in lines and module.functions_around(node)
        for edit in import_edits.removed(module.source, node, module.parent(node))
    ]


def is_of_jax(alias: ast.alias, module: Module) -> bool:
    """Returns whether an import brings the function that JAX removed, whose place is taken."""
    reference = module.facts.references.get(alias)
    return reference is not None and reference.name == f"jax.{alias.asname or alias.name}"


def may_be_imported(module: Module, name: str) -> bool:
    """Returns whether another file of the project may take a name from this one."""
    return _is_taken_from(module, name) or _is_imported_elsewhere(module, name)


def _is_taken_from(module: Module, name: str) -> bool:
    """Returns whether another file may import a name from a module, or reach it as an attribute."""
    for other in module.project.modules.values():
        if other is None or other is module:
            continue
        if module.path in other.env.star_imports:
            return True
        for bound, held in other.env.names.items():
            if Exported(module.path, name) in held:
                return True
            taken = rf"\b{bound}\s*\.\s*{name}\b|['\"]{name}['\"]"
            if Exported(module.path, "") in held and re.search(taken, other.source.text):
                return True
    return False


def _is_imported_elsewhere(module: Module, name: str) -> bool:
    """Returns whether another file imports a name from a module with the same name as this one."""
    folder, file = os.path.split(os.path.abspath(module.path))
    stem = os.path.basename(folder) if file == "__init__.py" else file.partition(".")[0]
    return any(
        (node.module or "").rpartition(".")[2] in (stem, "")
        and any(alias.name in (name, "*") for alias in node.names)
        for other in module.project.modules.values()
        if other is not None and other is not module
        for node in name_uses(other).imports
    )
