"""PMX516: shard_map in its old module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from pmapx._src.analysis import known_names
from pmapx._src.analysis.facts import Reference
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding, Fix
from pmapx._src.lint.references import uses_of
from pmapx._src.lint.renames import spelled
from pmapx._src.lint.rules import Rule
from pmapx._src.source.rewriting import call_edits, import_edits
from pmapx._src.source.rewriting.edits import Edit, between, replacing, starts

_MODULE = "jax.experimental.shard_map"
_FUNCTION = "jax.experimental.shard_map.shard_map"
_RENAMED = (("check_rep", "check_vma"), ("auto", "axis_names, the other axes"))
# The new function takes all but the first by keyword.
_PARAMETERS = (None, "mesh", "in_specs", "out_specs", "check_vma")


class ExperimentalShardMap(Rule):
    """``jax.experimental.shard_map`` is the old module of ``jax.shard_map``.

    **What.** An import or a use of ``jax.experimental.shard_map``.

    **Why.** It is deprecated in favour of ``jax.shard_map``, and its ``auto=`` was removed in JAX
    0.8. The new function takes keywords only, renames ``check_rep`` to ``check_vma``, and names
    the manual axes (``axis_names``) where the old one named the automatic ones.

    **Before**

    ```python
    from jax.experimental.shard_map import shard_map

    f = shard_map(g, mesh, in_specs=P("i"), out_specs=P("i"), check_rep=False)
    ```

    **After**

    ```python
    from jax import shard_map

    f = shard_map(g, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    ```

    **Safety.** The fix is safe: since JAX 0.8 the old function calls the new one in this way. A
    use with ``auto=`` or ``**options`` is not fixed.

    **Guide.** "Migrating to ``jax.shard_map``".
    """

    code: ClassVar[str] = "PMX516"
    names = (_MODULE,)

    def check(self, module: Module) -> Iterator[Finding]:
        """Gives each import, or each use through ``jax.experimental``."""
        for reference, _ in uses_of(module, self.names):
            call = module.parent(reference.node)
            renamed = []
            if isinstance(call, ast.Call):
                given = {keyword.arg for keyword in call.keywords}
                renamed = [f"{old} is now {new}" for old, new in _RENAMED if old in given]
            yield self.finding(
                module.place(reference.node),
                "jax.experimental.shard_map is deprecated"
                + (f"; {', '.join(renamed)}" if renamed else ""),
                hint="jax.shard_map, with mesh= by keyword",
                fix=_fix(module, reference),
            )


def _fix(module: Module, reference: Reference) -> Fix | None:
    edits = (
        _imported(module, reference)
        if isinstance(reference.node, ast.alias)
        else _used(module, reference, spelled(module, reference, "jax.shard_map"))
    )
    return Fix(tuple(edits)) if edits else None


def _imported(module: Module, reference: Reference) -> list[Edit] | None:
    """Rewrites an import and every use that goes through it, or nothing."""
    alias, statement = reference.node, module.parent(reference.node)
    if not isinstance(alias, ast.alias) or reference.name not in (_MODULE, _FUNCTION):
        return None
    bound = alias.asname or alias.name
    if isinstance(statement, ast.ImportFrom):
        edits = import_edits.moved(module.source, statement, {alias: "jax.shard_map"})
        new = bound
    elif isinstance(statement, ast.Import) and alias.asname is None:
        edits = [replacing(module.place(alias), "jax")]
        bound, new = "jax", "jax.shard_map"
    else:
        return None
    uses = {
        other.node: other
        for other in module.facts.references.values()
        if other.name == _FUNCTION and other.by != "import"
    }
    if bound != "jax" and not _are_all(module, bound, uses):
        return None
    for use in uses.values():
        is_name = isinstance(use.node, ast.Name)
        named = [] if is_name else [replacing(module.place(use.node), new)]
        used = _used(module, use, named)
        if used is None:
            return None
        edits += used
    return edits


def _are_all(module: Module, name: str, uses: dict[ast.AST, Reference]) -> bool:
    """Tells whether a name stands for nothing but the uses that were seen."""
    seen = {
        part for use in uses for part in ast.walk(use) if isinstance(part, ast.Name)
    }  # fmt: skip
    return name not in module.bound_names and all(
        node in seen
        for node in ast.walk(module.source.tree)
        if isinstance(node, ast.Name) and node.id == name
    )


def _used(module: Module, reference: Reference, named: list[Edit] | None) -> list[Edit] | None:
    """Returns the edits of one call, or one ``partial``, of the old function."""
    call = module.parent(reference.node)
    if named is None or not isinstance(call, ast.Call):
        return None
    names: tuple[str | None, ...] = _PARAMETERS
    if call.func is not reference.node:
        called = module.facts.calls.get(call)
        is_partial = called is not None and called.names & known_names.PARTIAL
        if not is_partial or call.args[:1] != [reference.node]:
            return None
        names = (None, *_PARAMETERS)
    edits = call_edits.by_keyword(module.source, call, names)
    if edits is None:
        return None
    for keyword in call.keywords:
        if keyword.arg in (None, "auto", "f"):
            return None
        if keyword.arg == "check_rep":
            line, column = starts(module.place(keyword))
            end = (line, column + len("check_rep"))
            edits.append(between((line, column), end, "check_vma"))
    return [*named, *edits]
