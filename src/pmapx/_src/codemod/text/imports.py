"""Changes to a file's imports: taken from pmapx, added, and dropped where nothing uses them."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Collection, Mapping

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Exported
from pmapx._src.codemod.text.name_uses import name_uses
from pmapx._src.source.rewriting import import_edits
from pmapx._src.source.rewriting.edits import Edit, between, replacing
from pmapx._src.source.rewriting.import_edits import inserted, stands_alone


def edits(
    module: Module, gone: Collection[ast.AST], moved: Mapping[ast.AST, str], *, needs: bool
) -> list[Edit]:
    """Returns the changes to a file's imports.

    ``gone`` are the nodes whose text was replaced; ``moved`` the names in ``from ... import``
    that are to come from pmapx, each with its name there; ``needs`` is whether the new texts
    name pmapx itself.
    """
    found: list[Edit] = []
    unused = _unused(module, gone, moved)
    for node in name_uses(module).imports:
        here = {alias: moved[alias] for alias in node.names if alias in moved}
        if here or any(alias in unused for alias in node.names):
            found += _changed(module, node, here, unused)
    plain = [node for node in module.source.tree.body if isinstance(node, ast.Import)]
    dropped = [node for node in plain if all(alias in unused for alias in node.names)]
    is_there = any(alias.name == "pmapx" for node in plain for alias in node.names)
    if needs and not is_there:
        if dropped and stands_alone(module.source, dropped[0]):
            found.append(replacing(module.place(dropped.pop(0)), "import pmapx"))
        else:
            found.append(_added(module))
    for gone_line in dropped:
        if stands_alone(module.source, gone_line):
            place = module.place(gone_line)
            found.append(between((place.line, 0), (place.end_line + 1, 0)))
    return found


def without_removed(module: Module, used: Collection[str]) -> list[Edit]:
    """Returns the edits that drop imports of functions that JAX removed, where ``used`` has another
    by the name.
    """
    found: list[Edit] = []
    for node in name_uses(module).imports:
        names = [alias for alias in node.names if (alias.asname or alias.name) in used]
        taken = {alias for alias in names if is_of_jax(alias, module)}
        found += _changed(module, node, {}, taken) if taken else []
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


def _changed(
    module: Module,
    node: ast.ImportFrom,
    moved: Mapping[ast.alias, str],
    unused: Collection[ast.AST],
) -> list[Edit]:
    """Takes names out of a ``from ... import``, and imports them from pmapx below it."""
    dropped = [alias for alias in node.names if alias in unused]
    if not moved:
        return import_edits.without(module.source, node, dropped, module.parent(node))
    ours = {alias: f"pmapx.{name}" for alias, name in moved.items()}
    return import_edits.moved(module.source, node, ours, dropped=dropped)


def _unused(
    module: Module, gone: Collection[ast.AST], moved: Mapping[ast.AST, str]
) -> set[ast.alias]:
    """Returns the imports at the top that only the replaced texts used."""
    # A notebook's magic lines may use what no statement does.
    if module.path.endswith("__init__.py") or module.source.cells:
        return set()
    inside = {part for node in gone if isinstance(node, ast.Attribute) for part in ast.walk(node)}
    inside |= {part for node in gone if isinstance(node, ast.Call) for part in ast.walk(node.func)}
    return {
        alias
        for node in module.source.tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if alias not in moved
        and _is_used_only(module, alias.asname or alias.name, inside.__contains__)
        and not may_be_imported(module, alias.asname or alias.name)
    }


def _is_used_only(module: Module, name: str, where: Callable[[ast.Name], bool]) -> bool:
    """Returns whether all uses of a name are in some places, and there are any."""
    uses = name_uses(module)
    # Strings: __all__, getattr and annotations in quotes.
    return name in uses.names and name not in uses.strings and all(map(where, uses.names[name]))


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
