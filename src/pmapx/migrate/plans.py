"""What becomes of each use of pmap: a form to rewrite it to, or why it is left.

``jit`` writes ``jax.jit(one_row_each(f, ...), ...)`` at the site, ``decorator`` the same as two
decorators, and ``name`` puts a function with pmap's own options in the place of ``jax.pmap``, for
what is kept, passed on or has options that cannot be seen here.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Set

from pmapx.migrate.module import Module
from pmapx.migrate.sites import Site
from pmapx.migrate.values import Exported, Function, Mapped, Named, Place, constant

NESTED = "nested in another pmap: it becomes one shard_map over a mesh of two axes, by hand"
NEGATIVE = "an axis that counts from the end, which the original refused: count from the front"
NO_STRING = "its axis_name is no string, which a mesh needs"
REMOVED_OPTION = "global_arg_shapes was removed from JAX: drop it first"
REMADE = (
    "made and called at once with options that cannot be kept, so that each call would compile "
    "anew: give the mapped function a name outside"
)
COMPARED = "compared with or changed, not called: nothing takes its place"
CONSTRUCTED = "called without a function: jax.pmap is no decorator factory"


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How a site is rewritten; ``is_kept`` if the same function is mapped again and again."""

    site: Site
    form: str
    is_kept: bool = False


def plan(
    module: Module, sites: Iterable[Site], nested: Set[Place] = frozenset()
) -> list[Plan | tuple[Site, str]]:
    """Returns a plan for each site, or the site and why it is left."""
    nodes = {module.place(ref.node): ref.node for ref in module.facts.references.values()}
    plans: list[Plan | tuple[Site, str]] = []
    for site in sites:
        reason = _reason(module, site, nodes[site.name], nested)
        plans.append((site, reason) if reason else _plan_one(module, site, nodes[site.name]))
    return plans


def _reason(module: Module, site: Site, node: ast.AST, nested: Set[Place]) -> str:
    parent = module.parent(node)
    if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
        return COMPARED
    if isinstance(parent, (ast.Compare, ast.Attribute)):
        return COMPARED
    if site.is_nested or nested & {site.name, site.whole}:
        return NESTED
    if site.kind == "partial" and isinstance(parent, ast.Call) and parent.func is node:
        return CONSTRUCTED
    if site.option("global_arg_shapes") is not None:
        return REMOVED_OPTION
    if any(_has_negative(site.option(axes)) for axes in ("in_axes", "out_axes")):
        return NEGATIVE
    for making in module.facts.makings.values():
        if making.site not in (site.name, site.whole):
            continue
        axes = [constant(making.options.get(k, frozenset())) for k in ("in_axes", "out_axes")]
        if any(_has_negative(repr(axis)) for axis in axes if axis is not ...):
            return NEGATIVE
        axis_name = constant(making.options.get("axis_name", frozenset()))
        if axis_name is not ... and not isinstance(axis_name, (str, type(None))):
            return NO_STRING
    if _may_be_remade(module, site, node) and site.is_called_at_once and not _is_keepable(site):
        return REMADE
    return ""


def _plan_one(module: Module, site: Site, node: ast.AST) -> Plan:
    is_plain = not site.has_unpacked_options and not _is_starred(module, node)
    if site.kind == "decorator" and is_plain:
        return Plan(site, "decorator")
    if site.kind in ("call", "wrapper") and is_plain and _can_repeat(site):
        is_kept = _may_be_remade(module, site, node) and _is_keepable(site)
        return Plan(site, "jit", is_kept)
    return Plan(site, "name")


def nested(module: Module) -> frozenset[Place]:
    """Returns the pmaps that are inside another, and those around them."""
    found: set[Place] = set()
    for making in module.facts.makings.values():
        if making.is_nested:
            found |= {making.site, *(f.site for f in making.function if isinstance(f, Mapped))}
    for call in module.facts.invocations.values():
        if call.is_under_map:
            found.add(call.mapped.site)
            mapped = module.project.mapped
            around = module.functions_around(call.node)
            found |= {mapped[function] for function in around if function in mapped}
    return frozenset(found)


def _is_starred(module: Module, node: ast.AST) -> bool:
    """Tells whether positional arguments are unpacked, or more are given than pmap takes."""
    call = module.parent(node)
    while isinstance(call, ast.Call):
        if any(isinstance(arg, ast.Starred) for arg in call.args) or len(call.args) > 2:
            return True
        if call.args and call.args[0] is node and len(call.args) > 1:
            return True
        if call.func is node:
            return False
        node, call = call, module.parent(call)
    return False


def _can_repeat(site: Site) -> bool:
    """The static positions are written twice, so that they must be plain."""
    text = site.option("static_broadcasted_argnums")
    return text is None or _literal(text) is not ... or text.isidentifier()


def _is_keepable(site: Site) -> bool:
    """Tells whether all options can be keys, so that a function is mapped once with them."""
    if site.has_unpacked_options:
        return False
    for name, text in site.options:
        if name in ("donate_argnums", "axis_size"):
            # These are jit's, or dropped.
            continue
        found = _literal(text)
        if found is ... and not (name == "axis_name" and text.replace(".", "").isidentifier()):
            return False
        if found is not ... and not _is_hashable(found):
            return False
    return True


def _may_be_remade(module: Module, site: Site, node: ast.AST) -> bool:
    """Tells whether a function that outlives the site is mapped there more than once."""
    if site.kind == "wrapper":
        return True
    if site.kind != "call" or not _is_repeated(module, node):
        return False
    call: ast.AST = node
    while module.place(call) != site.whole:
        call = module.parent(call)
    assert isinstance(call, ast.Call)
    function = call.args[0] if call.args else None
    root = function
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name) or any(
        root.id in _bound_in(around) for around in module.functions_around(node)
    ):
        return False
    held = module.env.find(root.id) or frozenset()
    lasting = (Function, Named, Exported) if root is function else (Named, Exported)
    return any(isinstance(fact, lasting) for fact in held)


_REPEATING = (
    ast.For, ast.AsyncFor, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip


def _is_repeated(module: Module, node: ast.AST) -> bool:
    while not isinstance(node, ast.Module):
        if isinstance(node, _REPEATING):
            return True
        node = module.parent(node)
    return False


def _bound_in(function: ast.AST) -> set[str]:
    """Returns the names that a function binds itself, those of functions within included."""
    found: set[str] = set()
    for node in ast.walk(function):
        if node is function:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
    return found


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ...


def _is_hashable(literal: object) -> bool:
    try:
        hash(literal)
    except TypeError:
        return False
    return True


def _has_negative(text: str | None) -> bool:
    try:
        tree = ast.parse(text.strip(), mode="eval") if text else None
    except (SyntaxError, ValueError):
        return False
    return tree is not None and any(
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
        for node in ast.walk(tree)
    )


def starts_processes(module: Module) -> bool:
    """Tells whether the program is made to run in several processes."""
    references = module.facts.references.values()
    return any(reference.name == "jax.distributed.initialize" for reference in references)
