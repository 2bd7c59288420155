"""What becomes of each use of pmap: a form to rewrite it to, or why it is left.

``jit`` writes ``jax.jit(jax.shard_map(on_one_row(f), mesh=...), ...)`` at the site if that has a
layout, and ``jax.jit(one_row_each(f, ...), ...)`` if not; ``decorator`` the same as decorators;
``name`` puts a function with pmap's own options in the place of ``jax.pmap``, for what is kept,
passed on or has options that cannot be seen here.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Set

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site
from pmapx._src.analysis.values import constant
from pmapx._src.codemod.decide.nested_pmaps import Nesting
from pmapx._src.codemod.decide.process_model import ORDINARY, Surroundings
from pmapx._src.codemod.decide.repeated_maps import may_be_remade
from pmapx._src.codemod.decide.specs import Layout, layout

NESTED = (
    "nested in a pmap of another file: both have to share one mesh of two axes, which takes both "
    "in one file"
)
NESTED_CLOSED = (
    "nested in another pmap whose values the inner function uses, which shard_map does not take "
    "from around it: pass them as arguments"
)
NESTED_IN_PROCESSES = (
    "nested in another pmap, in a program of several processes: it becomes one shard_map over a "
    "mesh of two axes, by hand"
)
NO_STRING = "its axis_name is no string, which a mesh needs"
REMOVED_OPTION = "global_arg_shapes was removed from JAX: drop it first"
LOWERED = (
    "lowered ahead of time in a program of several processes, where each process has only its own "
    "rows: stitch them to global arrays first"
)
COMPARED = "compared with or changed, not called: nothing takes its place"
IS_COMPARED = (
    "passed on, and the program compares what it is given with jax.pmap: change both by hand"
)
CONSTRUCTED = "called without a function: jax.pmap is no decorator factory"


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How a site is rewritten; ``is_kept`` if the same function is mapped again and again.

    ``is_inner`` if it is what another site maps, so that one ``jax.jit`` does for both.
    """

    site: Site
    form: str
    is_kept: bool = False
    is_nested: bool = False
    is_inner: bool = False
    layout: Layout | None = None

    @property
    def functions(self) -> list[str]:
        """The emitted functions that its text calls."""
        if self.layout is not None:
            return self.layout.functions
        if self.form == "name":
            return ["map_rows"]
        return ["kept_one_row_each" if self.is_kept else "one_row_each"]


def plan(
    module: Module,
    sites: Iterable[Site],
    nestings: Set[Nesting] = frozenset(),
    surroundings: Surroundings = ORDINARY,
) -> list[Plan | tuple[Site, str]]:
    """Returns a plan for each site, or the site and why it is left."""
    nodes = {module.place(ref.node): ref.node for ref in module.facts.references.values()}
    plans: list[Plan | tuple[Site, str]] = []
    for site in sites:
        node = nodes[site.name]
        around = [each for each in nestings if each.has(site)]
        in_processes = surroundings.in_processes
        reason = _reason(module, site, node) or _reason_of_nesting(around, in_processes)
        if not reason and in_processes and set(module.facts.lowerings.values()) & site.places:
            reason = LOWERED
        if reason:
            plans.append((site, reason))
        else:
            made = _plan_one(module, site, node, around)
            found = None if around else _layout(module, made, node, surroundings)
            if in_processes and found is None:
                made = Plan(site, "name")
            plans.append(dataclasses.replace(made, layout=found))
    return plans


def _layout(module: Module, made: Plan, node: ast.AST, around: Surroundings) -> Layout | None:
    """Returns how a map is written out where it stands, if it can be."""
    site = made.site
    has_row_each = around.has_row_a_device or site.option("devices") is not None
    is_plain = made.form != "name" and site.kind != "wrapper"
    if not is_plain or made.is_kept or site.is_called_at_once or not has_row_each:
        return None
    is_at_import = not module.functions_around(node)
    if is_at_import and (around.is_set_late or around.in_processes):
        return None
    if around.in_processes and made.form == "decorator":
        return None
    found = layout(module, site)
    if found is None or not around.in_processes:
        return found
    return dataclasses.replace(found, in_processes=True)


def _reason_of_nesting(around: list[Nesting], in_processes: bool) -> str:
    if around and in_processes:
        return NESTED_IN_PROCESSES
    if not all(each.is_in_one_file for each in around):
        return NESTED
    return NESTED_CLOSED if any(each.may_close for each in around) else ""


def _reason(module: Module, site: Site, node: ast.AST) -> str:
    parent = module.parent(node)
    if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
        return COMPARED
    if isinstance(parent, (ast.Compare, ast.Attribute)):
        return COMPARED
    if site.kind == "value" and module.project.compares_pmap:
        return IS_COMPARED
    if site.kind == "partial" and isinstance(parent, ast.Call) and parent.func is node:
        return CONSTRUCTED
    if site.option("global_arg_shapes") is not None:
        return REMOVED_OPTION
    for making in module.facts.makings.values():
        if making.site not in (site.name, site.whole):
            continue
        axis_name = constant(making.options.get("axis_name", frozenset()))
        if axis_name is not ... and not isinstance(axis_name, (str, type(None))):
            return NO_STRING
    return ""


def _plan_one(module: Module, site: Site, node: ast.AST, around: list[Nesting]) -> Plan:
    is_plain = not site.has_unpacked_options and not _is_starred(module, node)
    is_nested = bool(around)
    if site.kind == "decorator" and is_plain:
        return Plan(site, "decorator", is_nested=is_nested)
    if site.kind in ("call", "wrapper") and is_plain and _can_repeat(site):
        is_kept = may_be_remade(module, site, node)
        return Plan(site, "jit", is_kept, is_nested, _is_mapped_there(module, site, around))
    return Plan(site, "name", is_nested=is_nested)


def _is_mapped_there(module: Module, site: Site, around: list[Nesting]) -> bool:
    """Tells whether a pmap is written as the function of another, with no option for jit."""
    if site.option("donate_argnums") or site.option("static_broadcasted_argnums"):
        return False
    return any(
        making.is_nested
        and isinstance(making.node, ast.Call)
        and making.node.args
        and module.place(making.node.args[0]) == site.whole
        for making in module.facts.makings.values()
    )


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


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ...
