"""What becomes of each use of pmap: the best form that applies, or why it is left."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Sequence, Set

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site
from pmapx._src.analysis.values import constant
from pmapx._src.codemod import forms
from pmapx._src.codemod.decide import axis_names
from pmapx._src.codemod.decide.nested_pmaps import Nesting
from pmapx._src.codemod.decide.process_model import ORDINARY, Surroundings
from pmapx._src.codemod.forms import (
    Form,
    device_grid,
    shard_body,
    shard_map_call,
    shard_map_decorator,
)
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.replicated.groups import SINGLE
from pmapx._src.codemod.text.call_tokens import is_at_its_place
from pmapx._src.codemod.text.editor import Editor

NESTED = (
    "nested in a pmap of another file: both have to share one mesh of two axes, which takes both "
    "in one file"
)
NESTED_CLOSED = (
    "nested in another pmap whose values the inner function uses, which shard_map does not take "
    "from around it: pass them as arguments"
)
NESTED_IN_PROCESSES = (
    "nested in another pmap, in a multi-process program: write it as one shard_map over a mesh of "
    "two axes, by hand"
)
NO_STRING = "its axis_name is not a string, which a mesh needs"
REMOVED_OPTION = "global_arg_shapes was removed from JAX: drop it first"
LOWERED = (
    "lowered ahead of time in a multi-process program, where each process has only its own shards: "
    "make global arrays of them first"
)
COMPARED = "it is compared or reassigned, not called: there is no equivalent"
IS_COMPARED = (
    "passed on, and the program compares what it is given with jax.pmap: change both by hand"
)
CONSTRUCTED = "called without a function: jax.pmap is no decorator factory"
MISPLACED = "inside an f-string, in which this Python does not give its place: use Python 3.12"


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A use, and the form it is given; without one, why it is left."""

    use: Use
    form: Form | None = None
    reason: str = ""

    @property
    def takes_merged(self) -> bool:
        """Whether its arguments can be global arrays, whose shards the mapped body takes."""
        is_written_out = self.form in (shard_map_call, shard_map_decorator)
        # The size of a mesh is not read from global arrays.
        is_one = is_written_out and self.use.grid is None
        return is_one and self.use.names is not None and not self.use.is_sized

    def merge(self, arguments: frozenset[int], results: frozenset[int]) -> bool:
        """Lets arguments and results be global arrays, if the form can."""
        if not self.takes_merged:
            return False
        layout = self.use.known_layout
        if any(layout.in_axes_of(i) != 0 for i in arguments):
            return False
        is_single = SINGLE in results
        if is_single and layout.out_axes != 0:
            return False
        if results and not is_single and not isinstance(layout.out_axes, tuple):
            return False
        self.use.merge(arguments, results)
        return not self.form.obstacle(self.use)  # type: ignore[union-attr]

    @property
    def functions(self) -> list[str]:
        """The emitted functions that its text calls."""
        return self.form.functions(self.use) if self.form is not None else []


def plan(
    module: Module,
    sites: Sequence[Site],
    nestings: Set[Nesting] = frozenset(),
    surroundings: Surroundings = ORDINARY,
    replicated: Callable[[Site], frozenset[int]] = lambda site: frozenset(),
    counts: Callable[[Site], list[bool] | None] = lambda site: None,
) -> list[Plan]:
    """Returns a plan for each site."""
    nodes = {module.place(ref.node): ref.node for ref in module.facts.references.values()}
    # Other files that call its maps need the name of their axis, too.
    axis = Editor(module.source).quoted(axis_names.of_maps(module)) if sites else ""

    def uses() -> list[Use]:
        around = [[each for each in nestings if each.has(site)] for site in sites]
        return [
            Use(
                site,
                module,
                nodes[site.name],
                near,
                surroundings,
                default_axis=axis,
                replicated=replicated(site),
                known_counts=counts(site),
            )
            for site, near in zip(sites, around, strict=True)
        ]

    planned, others = uses(), uses()
    if not all(all(use.shard_counts) for use in planned):
        # Of maps whose arguments are not seen, the sizes may be those of the others.
        for use in (*planned, *others):
            is_some = use.around.takes_some or not use.shard_counts
            use.around = dataclasses.replace(use.around, takes_some=is_some)
    for grid, outer, inner in device_grid.grids(planned, nestings):
        outer.grid = inner.grid = grid
        if any(map(_reason, (outer, inner))) or not _is_written_out(outer):
            # Without the grid; what was found with it is not kept.
            for use in (outer, inner):
                planned[planned.index(use)] = next(each for each in others if each.site == use.site)
    return [_planned(use) for use in planned]


def _planned(use: Use) -> Plan:
    reason = _reason(use) or _reason_of_nesting(use)
    return Plan(use, reason=reason) if reason else Plan(use, forms.best(use))


def _is_written_out(outer: Use) -> bool:
    """Returns whether an outer map is written out, and nothing else has its function."""
    form = forms.best(outer)
    is_lambda = outer.function is not None and isinstance(outer.function.node, ast.Lambda)
    is_own = is_lambda or outer.grid is None or not outer.grid.is_called
    return form in (shard_map_call, shard_map_decorator) and (is_own or shard_body.is_edited(outer))


def _reason_of_nesting(use: Use) -> str:
    if use.grid is not None:
        return ""
    if use.nestings and use.around.in_processes:
        return NESTED_IN_PROCESSES
    if not all(each.is_in_one_file for each in use.nestings):
        return NESTED
    if any(each.may_close for each in use.nestings):
        return NESTED_CLOSED
    is_lowered = set(use.module.facts.lowerings.values()) & use.site.places
    return LOWERED if is_lowered and use.around.in_processes else ""


def _reason(use: Use) -> str:
    module, site, node = use.module, use.site, use.node
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
    if not all(is_at_its_place(module.source, part) for part in (use.expression, node)):
        return MISPLACED
    for making in module.facts.makings.values():
        if making.site not in (site.name, site.place):
            continue
        axis_name = constant(making.options.get("axis_name", frozenset()))
        if axis_name is not ... and not isinstance(axis_name, (str, type(None))):
            return NO_STRING
    return ""
