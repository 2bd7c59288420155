"""Changes to a file's imports: names that come from pmapx, and those that a rewrite replaces."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Mapping

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Exported
from pmapx._src.codemod.text.name_uses import name_uses
from pmapx._src.source.rewriting import import_edits
from pmapx._src.source.rewriting.edits import Edit, between
from pmapx._src.source.rewriting.import_edits import inserted


def edits(module: Module, moved: Mapping[ast.AST, str], *, needs: bool) -> list[Edit]:
    """Returns the changes to a file's imports.

    ``moved`` are the names in ``from ... import`` that are to come from pmapx, each with its name
    there; ``needs`` is whether the new texts name pmapx itself.
    """
    found: list[Edit] = []
    for node in name_uses(module).imports:
        here = {alias: f"pmapx.{moved[alias]}" for alias in node.names if alias in moved}
        found += import_edits.moved(module.source, node, here) if here else []
    plain = [node for node in module.source.tree.body if isinstance(node, ast.Import)]
    is_there = any(alias.name == "pmapx" for node in plain for alias in node.names)
    return [*found, _added(module)] if needs and not is_there else found


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


def _added(module: Module) -> Edit:
    """Puts ``import pmapx`` after the imports at the top of a file."""
    line = end_of_imports(module)
    if not line and module.source.cells:
        # What is above the first statement of a notebook may be a magic for all of its cell.
        real = [node for node in module.source.tree.body if not isinstance(node, ast.Pass)]
        first = real[0].lineno if real else 1
        return between((first, 0), (first, 0), "import pmapx\n")
    return inserted(module.source, line, "import pmapx\n")


def _is_magic(module: Module, node: ast.stmt) -> bool:
    return bool(module.source.cells) and isinstance(node, ast.Pass)


def end_of_imports(module: Module) -> int:
    """Returns the last line of the imports at the top, or of the docstring; 0 without either."""
    last = 0
    for position, node in enumerate(module.source.tree.body):
        is_docstring = (
            position == 0
            and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if is_docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
            last = node.end_lineno or 0
        elif not isinstance(node, (ast.If, ast.Try)) and not _is_magic(module, node):
            break
    return last
