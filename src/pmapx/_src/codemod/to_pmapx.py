"""The small step: the same code, with pmapx's functions instead of JAX's and Flax's."""

from __future__ import annotations

import ast
import dataclasses

from pmapx._src.analysis import known_names
from pmapx._src.analysis.facts import Reference
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Confidence, Named
from pmapx._src.codemod.decide.copies import takes_first
from pmapx._src.codemod.text import call_tokens, imports
from pmapx._src.codemod.text.name_uses import name_uses
from pmapx._src.codemod.write.rewrite import Outcome, Rewriting, broken
from pmapx._src.source import suppressions
from pmapx._src.source.rewriting import notebook_edits
from pmapx._src.source.rewriting.edits import Edit, keeping, replacing, starts

# Each with the keywords that ours takes too.
OURS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    **dict.fromkeys(known_names.PMAP, ("pmap", None)),
    "jax.device_put_replicated": ("device_put_replicated", ("x", "devices")),
    "jax.device_put_sharded": ("device_put_sharded", ("shards", "devices")),
    "flax.jax_utils.replicate": ("replicate", ("tree", "devices")),
    "flax.jax_utils.unreplicate": ("unreplicate", ("tree",)),
    "flax.jax_utils.prefetch_to_device": ("prefetch", ("iterator", "size", "devices")),
    "flax.training.common_utils.shard": ("shard_batch", ()),
}
GUARDED = "the code handles its absence here: remove that first"
REMOVED_OPTION = "global_arg_shapes was removed from JAX: drop it first"
OTHER_OPTION = "the pmapx function has no option {}"
TAKEN = "the name pmapx means something else in this file"
CHANGED = "it is compared or reassigned, not called: there is no equivalent"


@dataclasses.dataclass(frozen=True, slots=True)
class _Use:
    node: ast.AST
    what: str
    edits: tuple[Edit, ...]
    reason: str = ""
    imported: str = ""


def rewrite(module: Module, data: bytes) -> Rewriting:
    """Returns the file with pmapx's functions, and what became of each use.

    >>> from pmapx._src.analysis.project import Project
    >>> project, data = Project(["a.py"]), b"import jax\\nf = jax.pmap(abs, axis_name='i')\\n"
    >>> print(rewrite(project.module("a.py", data=data), data).after.decode())
    import jax
    import pmapx
    f = pmapx.pmap(abs, axis_name='i')
    <BLANKLINE>
    """
    uses = [
        use
        for use in [*_references(module), *_first_shards(module)]
        if not suppressions.is_suppressed("PMX501", module.place(use.node), module.source)
    ]
    reason = _obstacle(module)
    if reason:
        uses = [dataclasses.replace(use, reason=use.reason or reason) for use in uses]
    done = [use for use in uses if not use.reason]
    after = data
    if done:
        edits = [edit for use in done for edit in use.edits]
        moved = {use.node: use.imported for use in done if use.imported}
        edits = imports.with_imports(module, moved, edits)
        after = notebook_edits.applied(module.source, data, edits)
        why = broken(module, after)
        if why:
            after = data
            uses = [dataclasses.replace(use, reason=use.reason or why) for use in uses]
    outcomes = [_outcome(module, use) for use in uses if not use.imported]
    outcomes.sort(key=lambda each: (each.place.line, each.place.column))
    return Rewriting(module.path, data, after, tuple(outcomes))


def _outcome(module: Module, use: _Use) -> Outcome:
    place = module.place(use.node)
    return Outcome(place, use.what, use.reason, cell=module.source.cell_of(place.line))


def _obstacle(module: Module) -> str:
    held = module.env.find("pmapx")
    bound = name_uses(module).bound.get("pmapx", ())
    is_other = held is not None and held != frozenset({Named("pmapx")})
    return TAKEN if is_other or not all(isinstance(node, ast.alias) for node in bound) else ""


def _references(module: Module) -> list[_Use]:
    found = [ref for ref in module.facts.references.values() if ref.name in OURS]
    # A name whose absence the code handles somewhere is left everywhere.
    guarded = {ref.name for ref in found if ref.is_guarded and ref.name not in known_names.PMAP}
    return [_use(module, ref, guarded) for ref in found if ref.is_certain]


def _use(module: Module, ref: Reference, guarded: set[str]) -> _Use:
    node, (ours, keywords) = ref.node, OURS[ref.name]
    what = ref.name if ref.name not in known_names.PMAP else "jax.pmap"
    reason = GUARDED if ref.name in guarded else ""
    if isinstance(node, ast.alias):
        return _Use(node, what, (), reason, imported=ours)
    parent = module.parent(node)
    is_read = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
    if not is_read or isinstance(parent, (ast.Compare, ast.Attribute)):
        reason = CHANGED
    elif isinstance(parent, ast.Call) and parent.func is node:
        given = [keyword.arg for keyword in parent.keywords if keyword.arg is not None]
        if "global_arg_shapes" in given:
            reason = REMOVED_OPTION
        elif keywords is not None and set(given) - set(keywords):
            reason = OTHER_OPTION.format(min(set(given) - set(keywords)))
    # A name stays: what it is bound by, an import or an assignment, changes.
    if isinstance(node, ast.Name) and node.id in name_uses(module).bound:
        return _Use(node, what, (), reason)
    return _Use(node, what, (replacing(module.place(node), f"pmapx.{ours}"),), reason)


def _first_shards(module: Module) -> list[_Use]:
    """Returns where the first shard of a result is taken, by an index or a tree_map."""
    uses = []
    for node in _taken_first(module):
        place = module.place(node)
        value = module.place(node.value if isinstance(node, ast.Subscript) else node.args[1])
        edits = keeping(place, value, "pmapx.unreplicate(", ")")
        if isinstance(node, ast.Call):
            uses.append(_Use(node, "tree_map of x[0]", edits))
        elif starts(place) == starts(value):
            uses.append(_Use(node, "x[0]", edits))
    return uses


def _taken_first(module: Module) -> list[ast.Subscript | ast.Call]:
    """Returns where the first entry of what is stacked for sure is taken, outside traced code."""
    traced = module.project.jitted | module.project.mapped.keys()
    return [
        node
        for node, indexing in module.facts.indexings.items()
        if indexing.stacked.confidence == Confidence.HIGH
        and isinstance(node, (ast.Subscript, ast.Call))
        and _takes_first(module, node)
        and traced.isdisjoint(module.functions_around(node))
        and call_tokens.is_at_its_place(module.source, node)
    ]


def _takes_first(module: Module, node: ast.Subscript | ast.Call) -> bool:
    """Returns whether this is ``x[0]`` or ``tree_map(lambda x: x[0], x)``."""
    if isinstance(node, ast.Subscript):
        index = node.slice
        return isinstance(index, ast.Constant) and index.value == 0 and type(index.value) is int
    call = module.facts.calls.get(node)
    is_tree_map = call is not None and call.names <= known_names.TREE_MAP
    return is_tree_map and takes_first(node, only=0) and not isinstance(node.args[1], ast.Starred)
