"""Fixes for names that JAX renamed: the edits at a use, or at the import that it goes through.

A ``MovedFunction`` was renamed and now takes its options by keyword.
"""

import ast
import dataclasses
import functools
from collections.abc import Mapping

from pmapx._src.analysis import definitions, known_names, syntax
from pmapx._src.analysis.facts import Reference
from pmapx._src.analysis.interpreter import lookup
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Fix
from pmapx._src.source.rewriting import added_imports, call_edits, import_edits
from pmapx._src.source.rewriting.edits import Edit, between, replacing, starts

# ``import jax`` does not import these.
_NEED_AN_IMPORT = ("jax.extend.", "jax.example_libraries.")


def renamed(
    module: Module,
    reference: Reference,
    names: Mapping[str, str],
    imported: Mapping[str, str] | None = None,
    *,
    is_safe: bool = True,
) -> Fix | None:
    """Returns the fix for a use of a name that goes by another now.

    ``names`` has the new name of each old one, ``imported`` those that differ where it is
    imported; what was below the old is below the new. None if the place cannot be rewritten.
    """
    new = new_name(reference.name, names)
    if not reference.is_certain or new is None:
        return None
    if isinstance(reference.node, ast.alias):
        edits = _imported(module, reference, {**names, **(imported or {})})
    else:
        edits = spelled(module, reference, new, names)
    return Fix(tuple(edits), is_safe) if edits else None


def new_name(name: str, names: Mapping[str, str]) -> str | None:
    """Returns the new name of something, given those of what it may be below.

    >>> new_name("jax.experimental.stax.Dense", {"jax.experimental.stax": "jax.stax"})
    'jax.stax.Dense'
    """
    old, rest = name, ""
    while old:
        if old in names:
            return names[old] + rest
        old, _, last = old.rpartition(".")
        rest = f".{last}{rest}"
    return None


def spelled(
    module: Module, reference: Reference, new: str, names: Mapping[str, str] | None = None
) -> list[Edit] | None:
    """Returns the edits that replace an attribute by another name."""
    node = reference.node
    written = lookup.dotted(node)
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load) or not written:
        return None
    root, *attributes = written.split(".")
    # What the first word of the expression means, if an import in this file binds it.
    stands_for = ".".join(reference.name.split(".")[: -len(attributes)])
    if root in module.bound_names or _imports_of(module, root) != {stands_for}:
        return None
    edits: list[Edit] = []
    if new.startswith(_NEED_AN_IMPORT):
        base = new.removesuffix("." + ".".join(attributes))
        if moved := _moved_import(module, root, stands_for, base, names or {}):
            return moved
        needed = ".".join(new.split(".")[:3])
        if not _is_imported(module, needed):
            edit = added_imports.beside(module.source, f"import {needed}", node)
            if edit is None:
                return None
            edits.append(edit)
            # That import binds ``jax`` as well.
            root, stands_for = "jax", "jax"
    if not new.startswith(stands_for + "."):
        if not edits and not module.binds("jax", "jax"):
            edit = added_imports.beside(module.source, "import jax", node)
            if edit is None or module.env.find("jax") is not None:
                return None
            edits.append(edit)
        root, stands_for = "jax", "jax"
    if root == "jax" and ("jax" in module.bound_names or _imports_of(module, "jax") - {"jax"}):
        return None
    return [*edits, replacing(module.place(node), root + new[len(stands_for) :])]


def _moved_import(
    module: Module, root: str, old: str, new: str, names: Mapping[str, str]
) -> list[Edit] | None:
    """Returns the edits of ``from a import root`` if all that a file uses of it has moved to one
    module: its uses stay.
    """
    references = module.facts.references
    aliases = [
        node
        for node, reference in references.items()
        if isinstance(node, ast.alias) and (node.asname or node.name) == root
    ]
    uses = [node for node in module.nodes if isinstance(node, ast.Name) and node.id == root]
    parents = [references.get(module.parent(node)) for node in uses]
    if (
        new == old
        or len(aliases) != 1
        or not all(
            each is not None and new_name(each.name, names) == new + each.name[len(old) :]
            for each in parents
        )
    ):
        return None
    statement = module.parent(aliases[0])
    if not isinstance(statement, ast.ImportFrom) or "." not in new:
        return None
    return import_edits.moved(module.source, statement, {aliases[0]: new})


def _imported(module: Module, reference: Reference, names: Mapping[str, str]) -> list[Edit] | None:
    alias = reference.node
    statement = module.parent(alias)
    if isinstance(statement, ast.ImportFrom):
        references = module.facts.references
        moves = {
            other: new
            for other in statement.names
            if other in references
            and (new := new_name(references[other].name, names)) is not None
            and "." in new
        }
        return import_edits.moved(module.source, statement, moves) if alias in moves else None
    if not isinstance(alias, ast.alias) or not isinstance(statement, ast.Import):
        return None
    new = new_name(reference.name, names) or ""
    if alias.asname is not None:
        return [replacing(module.place(alias), f"{new} as {alias.asname}")]
    # ``import a.b`` binds only ``a``, and each use spells out ``a.b``.
    edits = [replacing(module.place(alias), new)]
    for other in module.facts.references.values():
        if isinstance(other.node, ast.Attribute) and other.name.startswith(reference.name + "."):
            written = lookup.dotted(other.node) or ""
            if written != other.name:
                return None
            text = new + other.name[len(reference.name) :]
            edits.append(replacing(module.place(other.node), text))
    return edits


def _is_imported(module: Module, name: str) -> bool:
    return any(
        isinstance(statement, ast.Import)
        and any(alias.name == name and alias.asname is None for alias in statement.names)
        for statement in module.source.tree.body
    )


def _imports_of(module: Module, name: str) -> set[str]:
    """Returns the full names of what the imports of a file bind to a name."""
    return _imports(module).get(name, set())


# A file may have thousands of uses, one after another.
@functools.lru_cache(maxsize=1)
def _imports(module: Module) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for reference in module.facts.references.values():
        alias = reference.node
        if isinstance(alias, ast.alias):
            is_plain = alias.asname is None and isinstance(module.parent(alias), ast.Import)
            # ``import a.b`` binds ``a``.
            full = reference.name.partition(".")[0] if is_plain else reference.name
            bound = alias.asname or (full if is_plain else alias.name)
            found.setdefault(bound, set()).add(full)
    return found


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
    """Returns whether a name has no uses other than those that were seen."""
    seen = {part for use in uses for part in syntax.walk(use) if isinstance(part, ast.Name)}
    return name not in module.bound_names and all(
        node in seen for node in module.nodes if isinstance(node, ast.Name) and node.id == name
    )


def _is_free(module: Module, name: str) -> bool:
    """Returns whether nothing in a file is called by a name."""
    used = {node.id for node in module.nodes if isinstance(node, ast.Name)}
    taken = used | definitions.bound_or_imported(module.nodes)
    return module.env.find(name) is None and name not in taken
