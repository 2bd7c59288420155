"""One file from pmap to shard_map: the sites that have a form, and nothing else."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site, find_sites
from pmapx._src.analysis.values import Named
from pmapx._src.codemod.decide import axis_names, specs
from pmapx._src.codemod.decide.global_state import REPLICATED
from pmapx._src.codemod.decide.leading_axes import maps_leading_axes
from pmapx._src.codemod.decide.map_calls import map_calls
from pmapx._src.codemod.decide.nested_pmaps import Nesting, nestings
from pmapx._src.codemod.decide.process_model import ORDINARY, Surroundings
from pmapx._src.codemod.forms import inner_map, process_calls, shard_map_call
from pmapx._src.codemod.forms import placing as placing_forms
from pmapx._src.codemod.forms import shard_map_decorator as decorator_form
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text import imports, outer_calls
from pmapx._src.codemod.text.call_tokens import arguments, is_at_its_place
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.text.name_uses import name_uses
from pmapx._src.codemod.write import file_head, plans
from pmapx._src.codemod.write.common_functions import CommonFunctions
from pmapx._src.codemod.write.meshes import Meshes
from pmapx._src.codemod.write.plans import Plan
from pmapx._src.codemod.write.shared_module import AUTO, SharedModule
from pmapx._src.emitted import functions as emitted_functions
from pmapx._src.emitted.functions import Manner
from pmapx._src.source import files, suppressions
from pmapx._src.source.discovery import Unreadable
from pmapx._src.source.location import Place
from pmapx._src.source.rewriting import notebook_edits
from pmapx._src.source.rewriting.edits import between, starts

# Functions that put one shard on each device, and what takes the place of those that cannot be
# written out: JAX's own, which were removed, and one of Flax.
PLACING = {
    "jax.device_put_replicated": "device_put_replicated",
    "jax.device_put_sharded": "device_put_sharded",
    "flax.jax_utils.replicate": "replicate_over_devices",
}
TAKEN = "the name {} that its rewrite needs means something else in this file"
_WITH_MESH = (shard_map_call, decorator_form)
# Why a file stays as it is although its uses have a form.
NOT_WRITTEN = (
    "the file cannot be rewritten",
    "the rewritten file would not parse",
    "a rewritten cell would not parse",
)
JAX_TAKEN = "the name jax means something else in this file"
WRAPPED = "__wrapped__ is used in this file, which is another function after the rewrite"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one place; ``reason`` is why it is left, and empty if it is not.

    ``cell`` is a notebook's cell, and the line in it.
    """

    place: Place
    what: str
    reason: str = ""
    cell: tuple[int, int] | None = None

    @property
    def where(self) -> str:
        """Line and column as editors count them, in a notebook after the cell's number."""
        column = self.place.column + 1
        if self.cell is None:
            return f"{self.place.line}:{column}"
        return f"cell {self.cell[0]}:{self.cell[1]}:{column}"


@dataclasses.dataclass(frozen=True, slots=True)
class Rewriting:
    """A file before and after, equal if nothing was to be done or it could not be."""

    path: str
    before: bytes
    after: bytes
    outcomes: tuple[Outcome, ...]

    @property
    def is_changed(self) -> bool:
        return self.before != self.after


@dataclasses.dataclass(frozen=True, slots=True)
class _Change:
    """A place to edit, how, and the emitted functions that the new text calls."""

    place: Place
    functions: Sequence[str]
    write: Callable[[Editor], None]
    imports: Sequence[str] = ()
    # Python's own functions that the new text calls.
    words: Sequence[str] = ()
    # An inner map is written before the outer one, whose function has its text.
    is_inner: bool = False


def rewrite(
    module: Module,
    data: bytes,
    *,
    around: Surroundings = ORDINARY,
    others: Mapping[Module, Sequence[Plan]] | None = None,
    shared: SharedModule | None = None,
    common: CommonFunctions | None = None,
    moves_bodies: bool = True,
) -> Rewriting:
    """Returns the file with its uses of pmap rewritten, and what became of each.

    ``around`` is how the program is run; ``others`` are the plans of all its files, which call each
    other's maps; ``shared`` is the module of what they share, ``common`` has functions of one that
    they import anyway; ``moves_bodies`` if decorated functions may get inner ones.

    >>> from pmapx._src.analysis.project import Project
    >>> project, data = Project(["a.py"]), b"import jax\\nf = jax.pmap(abs, axis_name='i')\\n"
    >>> done = rewrite(project.module("a.py", data=data), data)
    >>> "jax.shard_map(" in done.after.decode()
    True
    """
    planned = others[module] if others else plan(module, around=around)
    placing = _placing_names(module)
    meshes = Meshes(module, around, shared, common)
    with_mesh = [plan.use for plan in planned if plan.form in _WITH_MESH]
    with_mesh = [use for use in with_mesh if not shard_map_call.is_plain_jit(use)]
    meshes.assign(with_mesh)
    sharing = common or shared
    if sharing is not None:
        sharing.share_conversions(module, with_mesh)
    changes = [_site_change(plan) for plan in planned if plan.form is not None]
    changes += _around_inner_maps(module, planned)
    changes += [_placed(module, meshes, node, name) for node, name in placing.items()]
    every = [each for several in (others or {module: planned}).values() for each in several]
    is_local = _is_state_local(every)
    changes += [_replicated(module, meshes, node, is_local) for node in _replicating(module)]
    changes += _calls(module, meshes, every)
    after, reason = data, ""
    if changes:
        editor, manner = Editor(module.source, moves_bodies), _manner(planned, around)
        after, reason = _changed(module, editor, data, changes, manner, meshes, shared)
    return Rewriting(module.path, data, after, _outcomes(module, planned, placing, reason))


def plan(
    module: Module,
    *,
    nested: frozenset[Nesting] = frozenset(),
    around: Surroundings = ORDINARY,
    replicated: Callable[[Site], frozenset[int]] = lambda site: frozenset(),
    counts: Callable[[Site], list[bool] | None] = lambda site: None,
) -> list[Plan]:
    """Returns what becomes of each use of pmap in a file that is not suppressed.

    ``replicated`` gives the arguments of a site that the global style made replicated, ``counts``
    what was known of its sizes before batches were merged.
    """
    sites = [
        site
        for site in find_sites(module)
        if not suppressions.is_suppressed("PMX501", site.place, module.source)
    ]
    return plans.plan(module, sites, nested | nestings([module]), around, replicated, counts)


def _calls(module: Module, meshes: Meshes, planned: Sequence[Plan]) -> list[_Change]:
    """Returns the changes of calls in a multi-process program."""
    found = []
    for each in planned:
        use = each.use
        is_converted = each.form in _WITH_MESH and process_calls.is_converted(use)
        if not is_converted or process_calls.is_at_site(use):
            calls = use.calls_in_order if each.form in _WITH_MESH else []
            found += [_in_order(call, module) for where, call in calls if where is module]
            continue
        axis = specs.axis_value(use.module, use.site) or axis_names.of_maps(use.module)
        for where, call in map_calls(use.module, use.site):
            if where is module:
                mesh = use.near_mesh or meshes.name_for(call, axis)
                found.append(_call(use, module, call, mesh))
    return found


def _in_order(call: ast.Call, module: Module) -> _Change:
    """Returns the change of a call whose keywords are the next arguments, in their order."""

    def write(editor: Editor) -> None:
        for (_, place), given in zip(
            arguments(editor.source, call)[len(call.args) :], call.keywords, strict=True
        ):
            editor.edits.append(between(starts(editor.source.place(given)), starts(place)))

    return _Change(module.place(call), [], write)


def _call(use: Use, module: Module, call: ast.Call, mesh: str) -> _Change:
    return _Change(
        module.place(call),
        [],
        lambda editor: process_calls.write(use, module, call, mesh, editor),
        (process_calls.IMPORT,),
    )


def _changed(
    module: Module,
    editor: Editor,
    data: bytes,
    changes: Sequence[_Change],
    manner: Manner,
    meshes: Meshes,
    shared: SharedModule | None,
) -> tuple[bytes, str]:
    """Returns the file with its changes, or as it is and the reason."""
    used = {name for change in changes for name in change.functions}
    is_held = bool(used) and shared is not None and shared.holds_functions_of(module)
    holder = shared if is_held else None
    imported = dict.fromkeys(line for change in changes for line in change.imports)
    words = {word: Named(word) for change in changes for word in change.words}
    for line in imported:
        *of, name = line.replace("from ", "").replace("import ", "").split()
        words[name] = Named(".".join([*of, name]))
    reason = _obstacle(module, used, manner, words, holder)
    if reason:
        return data, reason
    # From the inside out: the text of an outer site has what became of those inside it.
    for change in sorted(changes, key=lambda each: (not each.is_inner, _inside_out(each.place))):
        change.write(editor)
    meshes.write(editor)
    outer_calls.lay_out(module, editor)
    for move in editor.last:
        move()
    names = dict(meshes.imported)
    if holder is not None:
        names |= {holder.function(module, name, manner): name for name in used}
    if shared is not None and names:
        imported |= dict.fromkeys(shared.import_lines(module, names))
    pasted = used if holder is None else set()
    edits = [
        *editor.edits,
        *imports.without_removed(module, used),
        *imports.without_local(module, imported),
        *file_head.added(module, editor, pasted, manner, imported),
    ]
    try:
        after = notebook_edits.applied(module.source, data, edits)
    except (ValueError, RecursionError) as error:
        return data, f"{NOT_WRITTEN[0]}: {' '.join(str(error).split())[:120]}"
    problem = broken(module, after)
    return (data, problem) if problem else (after, "")


def broken(module: Module, after: bytes) -> str:
    """Returns what is wrong with a rewritten file, if anything is."""
    parsed = files.parse(module.path, after)
    if isinstance(parsed, Unreadable):
        return f"{NOT_WRITTEN[1]}: {parsed.reason}"
    is_same = parsed.problems == module.source.problems
    return "" if is_same else NOT_WRITTEN[2]


def _inside_out(place: Place) -> tuple[int, int, int, int]:
    return -place.line, -place.column, place.end_line, place.end_column


def _site_change(plan: Plan) -> _Change:
    use, form = plan.use, plan.form
    assert form is not None
    is_written_out = form in _WITH_MESH
    needed = shard_map_call.imports(use) if is_written_out else []
    words = ["len"] if is_written_out and use.is_sized else []
    words += ["sorted"] if is_written_out and use.around.in_processes else []
    return _Change(
        use.site.place,
        plan.functions,
        lambda editor: form.write(use, editor),
        needed,
        words,
        form is inner_map,
    )


def _around_inner_maps(module: Module, planned: Sequence[Plan]) -> list[_Change]:
    """Returns the changes of what inner maps are given, and of what becomes of their results."""
    outer = {plan.use.site: plan.use for plan in planned}
    return [
        _Change(
            module.place(node),
            [],
            functools.partial(inner_map.write_around, use, outer[use.grid.outer], node),
            is_inner=True,
        )
        for use in (plan.use for plan in planned if plan.form is inner_map)
        if use.grid is not None
        for node in inner_map.around(use)
    ]


def _placed(module: Module, meshes: Meshes, node: ast.AST, name: str) -> _Change:
    """Returns the change of a call that puts shards on devices."""
    if placing_forms.obstacle(module, node, name):
        new = PLACING[name]
        place = module.place(node)
        return _Change(place, [new], lambda editor: editor.replace(place, new))
    call = module.parent(node)
    assert isinstance(call, ast.Call)
    mesh = "" if meshes.in_processes else _mesh_of(module, meshes, call)
    return _Change(
        module.place(call),
        [],
        lambda editor: placing_forms.write(module, node, name, mesh, meshes.quoted_axis, editor),
    )


def _mesh_of(module: Module, meshes: Meshes, call: ast.Call) -> str:
    """Returns the mesh that a call puts arrays on."""
    devices = placing_forms.some_devices(module, call)
    if devices:
        return f"jax.sharding.Mesh({devices}, ({meshes.quoted_axis},), {AUTO})"
    return meshes.name_for(call)


def _replicating(module: Module) -> list[ast.Call | ast.Tuple]:
    """Returns what the global style wrote to replicate trees: calls, and tuples of them."""
    if module.env.find(REPLICATED) is not None:
        return []
    calls = [
        n for n in module.nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == REPLICATED
    ]
    parents = dict.fromkeys(module.parent(call) for call in calls if len(call.args) == 1)
    tuples = [n for n in parents if isinstance(n, ast.Tuple) and {*calls}.issuperset(n.elts)]
    return [*tuples, *(call for call in calls if module.parent(call) not in tuples)]


def _is_state_local(planned: Sequence[Plan]) -> bool:
    """Returns whether all that takes replicated state maps over the devices of one process."""
    given = [plan.use for plan in planned if plan.use.replicated]
    return bool(given) and all(
        isinstance(use.layout, specs.Layout) and use.layout.devices == specs.LOCAL for use in given
    )


def _replicated(
    module: Module, meshes: Meshes, node: ast.Call | ast.Tuple, is_local: bool
) -> _Change:
    call = next(part for part in ast.walk(node) if isinstance(part, ast.Call))
    is_local = is_local and not placing_forms.some_devices(module, call)
    mesh = meshes.name_for_local(call) if is_local else _mesh_of(module, meshes, call)
    is_global = meshes.in_processes and not is_local
    write = functools.partial(placing_forms.write_replicated, module, node, mesh, is_global)
    return _Change(module.place(node), [], write)


def _placing_names(module: Module) -> dict[ast.AST, str]:
    """Returns where the module uses functions that put shards on devices, and which.

    One that is also used where its absence is handled, as in a ``try``, or where its place is not
    known, is left altogether.
    """
    uses = [
        reference
        for reference in module.facts.references.values()
        if reference.name in PLACING and reference.by != "import"
    ]
    guarded = {
        use.name
        for use in uses
        if use.is_guarded or not use.is_certain or not is_at_its_place(module.source, use.node)  # type: ignore[arg-type]
    }
    if not any(
        other is not None and other.facts.makings for other in module.project.modules.values()
    ):
        guarded.add("flax.jax_utils.replicate")
    return {use.node: use.name for use in uses if use.name not in guarded}


def _manner(planned: Sequence[Plan], around: Surroundings) -> Manner:
    uses = [plan.use for plan in planned if plan.functions]
    is_short = around.maps_all_devices and not any(use.nestings for use in uses)
    leading = functools.partial(maps_leading_axes, in_processes=around.in_processes)
    if is_short and uses and all(leading(use.module, use.site) for use in uses):
        return Manner.LEADING_PROCESSES if around.in_processes else Manner.LEADING
    if around.in_processes:
        leading = functools.partial(leading, has_static=True)
        is_short = is_short and bool(uses) and all(leading(use.module, use.site) for use in uses)
        return Manner.STATIC_PROCESSES if is_short else Manner.PROCESSES
    return Manner.NESTED if any(use.nestings for use in uses) else Manner.PLAIN


def _obstacle(
    module: Module,
    used: set[str],
    manner: Manner,
    words: Mapping[str, Named],
    holder: SharedModule | None,
) -> str:
    """Returns why no site of the file can be rewritten, if so.

    ``holder`` is the module that it takes functions from.
    """
    bound = module.env.find("jax")
    if bound is not None and bound != frozenset({Named("jax")}):
        return JAX_TAKEN
    names = emitted_functions.with_needs(used, manner) if holder is None else sorted(used)
    own = emitted_functions.words(names, manner) if holder is None else ()
    words = {**words, **{word: Named(word) for word in own}}
    for word, wanted in sorted(words.items()):
        held = module.env.find(word)
        if held is not None and held != frozenset({wanted}):
            return TAKEN.format(word)
    uses = name_uses(module)
    if "__wrapped__" in uses.attributes:
        return WRAPPED
    if not all(isinstance(node, ast.alias) for node in uses.bound.get("jax", ())):
        return JAX_TAKEN
    for name in names:
        for node in uses.bound.get(name, ()):
            is_ours = isinstance(node, ast.alias) and (
                imports.is_of_jax(node, module)
                or (holder is not None and holder.is_imported(module, node))
            )
            if not is_ours and not file_head.is_emitted(node, name, manner):
                return TAKEN.format(name)
    return ""


def _what(site: Site) -> str:
    kind = "called at once" if site.kind == "call" and site.is_called_at_once else site.kind
    return f"jax.pmap ({kind})"


def _outcomes(
    module: Module, planned: Sequence[Plan], placing: dict[ast.AST, str], reason: str
) -> tuple[Outcome, ...]:
    """Returns what became of each place; a site that has a reason of its own keeps it."""
    found = [
        (plan.use.site.name, _what(plan.use.site), plan.reason or reason) for plan in planned
    ] + [(module.place(node), name, reason) for node, name in placing.items()]
    return tuple(
        Outcome(place, what, why, cell=module.source.cell_of(place.line))
        for place, what, why in sorted(found, key=lambda each: starts(each[0]))
    )
