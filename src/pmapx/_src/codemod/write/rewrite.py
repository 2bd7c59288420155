"""One file from pmap to shard_map: the sites that have a plan, and nothing else, with LibCST."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Sequence

import libcst as cst

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site, find_sites
from pmapx._src.analysis.values import Named, Place
from pmapx._src.codemod.decide import plans
from pmapx._src.codemod.decide.nested_pmaps import Nesting, nestings
from pmapx._src.codemod.decide.plans import Plan
from pmapx._src.codemod.decide.process_model import ORDINARY, Surroundings
from pmapx._src.codemod.write import emitted, imports
from pmapx._src.codemod.write.emitted import Manner
from pmapx._src.codemod.write.text_pieces import Piece, change
from pmapx._src.source import files, notebook_cells, suppressions
from pmapx._src.source.discovery import Unreadable

Planned = Sequence[Plan | tuple[Site, str]]
# Functions that put rows on devices, and what takes their place: those that JAX removed, and one of
# Flax, whose mesh has a name of its own, so that a step would be compiled for what it is given
# first and again for what it returns.
PLACING = {
    "jax.device_put_replicated": "device_put_replicated",
    "jax.device_put_sharded": "device_put_sharded",
    "flax.jax_utils.replicate": "replicate_rows",
}
_NAMES = {new: old for old, new in PLACING.items()}
TAKEN = "the name {} that its rewrite needs means something else in this file"
JAX_TAKEN = "the name jax means something else in this file"
WRAPPED = "__wrapped__ is used in this file, which is another function after the rewrite"
LOST = "not found again in the file"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one place; ``reason`` says why it is left, and is empty if it is not.

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
        """Whether there is something to write."""
        return self.before != self.after


def rewrite(
    module: Module,
    data: bytes,
    *,
    nested: frozenset[Nesting] = frozenset(),
    around: Surroundings = ORDINARY,
) -> Rewriting:
    """Returns the file with its uses of pmap rewritten, and what became of each.

    ``nested`` are the pmaps of the whole program that are inside another; ``around`` tells how
    that program is run.

    >>> from pmapx._src.analysis.project import Project
    >>> project, data = Project(["a.py"]), b"import jax\\nf = jax.pmap(abs, axis_name='i')\\n"
    >>> done = rewrite(project.module("a.py", data=data), data)
    >>> done.after.decode().splitlines()[-1]
    "f = jax.jit(one_row_each(abs, axis_name='i'))"
    """
    sites = [
        site
        for site in find_sites(module)
        if not suppressions.is_suppressed("PMX501", site.whole, module.source)
    ]
    planned = plans.plan(module, sites, nested | nestings([module]), around)
    manner = _manner(module, planned, around.in_processes)
    removed = _placing_names(module)
    left = functools.partial(_left, module, data, planned, removed)
    if not removed and not any(isinstance(each, Plan) for each in planned):
        return left("")
    reason = _obstacle(module, _wanted(planned, removed), manner)
    if reason:
        return left(reason)
    try:
        pieces = _pieces(module, data)
    except Exception as error:  # `not(lambda: x)` gives a TypeError of its own.
        return left(f"LibCST does not read the file: {_line(error)}")
    if pieces is None:
        return left("LibCST does not write the file as it read it")
    try:
        done = change(pieces, [each for each in planned if isinstance(each, Plan)], removed,
                      module, manner)  # fmt: skip
        after = _written(data, pieces)
    except (RecursionError, cst.ParserSyntaxError, cst.CSTValidationError) as error:
        return left(f"the file cannot be rewritten: {_line(error)}")
    parsed = files.parse(module.path, after)
    if isinstance(parsed, Unreadable):
        return left(f"the rewritten file would not parse: {parsed.reason}")
    if parsed.problems != module.source.problems:
        return left("a rewritten cell would not parse")
    return Rewriting(module.path, data, after, tuple(_outcomes(module, planned, removed, done)))


def _pieces(module: Module, data: bytes) -> list[Piece] | None:
    """Returns the file as one piece, or a notebook's cells; None if LibCST changes them."""
    if not module.source.cells:
        tree = cst.parse_module(data)
        return [Piece(0, 1, len(module.source.lines), tree)] if tree.bytes == data else None
    pieces = [
        Piece(
            cell.number,
            cell.first_line,
            cell.source.count("\n") + 1,
            cst.parse_module(cell.source),
        )
        for cell in module.source.cells
    ]
    is_same = all(
        piece.tree.code == cell.source
        for piece, cell in zip(pieces, module.source.cells, strict=True)
    )
    return pieces if is_same else None


def _written(data: bytes, pieces: list[Piece]) -> bytes:
    if pieces[0].number == 0:
        return pieces[0].tree.bytes
    return notebook_cells.with_cells(
        data,
        {
            piece.number: (piece.before.code, piece.tree.code)
            for piece in pieces
            if piece.tree is not piece.before
        },
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


def _placing_names(module: Module) -> dict[Place, str]:
    """Returns where the module uses functions that put rows on devices, and what each becomes.

    One that is also used where its absence is looked after, as in a ``try``, is left altogether.
    """
    uses = [
        reference
        for reference in module.facts.references.values()
        if reference.name in PLACING and reference.by != "import"
    ]
    guarded = {use.name for use in uses if use.is_guarded or not use.is_certain}
    if not any(
        other is not None and other.facts.makings for other in module.project.modules.values()
    ):
        guarded.add("flax.jax_utils.replicate")
    return {module.place(use.node): PLACING[use.name] for use in uses if use.name not in guarded}


def _wanted(planned: Planned, removed: dict[Place, str]) -> set[str]:
    made = [plan for plan in planned if isinstance(plan, Plan)]
    forms = {"first_row"} if made else set()
    # A site with comments inside becomes a call of map_rows.
    forms |= {"map_rows"} if any(plan.layout is None for plan in made) else set()
    forms |= {name for plan in made for name in plan.functions}
    return forms | set(removed.values())


# What the shortest of the functions that map rows can do.
_SIMPLE_OPTIONS = frozenset({"axis_name", "devices", "backend", "donate_argnums"})


def _manner(module: Module, planned: Planned, in_processes: bool) -> Manner:
    if in_processes:
        return Manner.PROCESSES
    made = [each for each in planned if isinstance(each, Plan) and each.layout is None]
    if any(each.is_nested for each in made):
        return Manner.NESTED
    if not all(_is_simple(module, each) for each in made) or _has_general(module):
        return Manner.PLAIN
    return Manner.SIMPLE


def _is_simple(module: Module, made: Plan) -> bool:
    # One with comments inside becomes a call of map_rows.
    text = module.source.lines[made.site.whole.line - 1 : made.site.whole.end_line]
    return (
        made.form != "name"
        and not made.site.has_unpacked_options
        and _SIMPLE_OPTIONS.issuperset(name for name, _ in made.site.options)
        and not any("#" in line for line in text)
    )


def _has_general(module: Module) -> bool:
    """Tells whether an earlier run wrote the function that maps any axes, which stays."""
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name == "one_row_each"
        and imports.is_emitted(node, node.name, Manner.PLAIN)
        for node in module.source.tree.body
    )


def _obstacle(module: Module, wanted: set[str], manner: Manner) -> str:
    """Returns why no site of the file can be rewritten, if so."""
    bound = module.env.find("jax")
    if bound is not None and bound != frozenset({Named("jax")}):
        return JAX_TAKEN
    names = emitted.with_needs(wanted, manner)
    for word in sorted(emitted.words(names, manner)):
        held = module.env.find(word)
        if held is not None and held != frozenset({Named(word)}):
            return TAKEN.format(word)
    for node in ast.walk(module.source.tree):
        name = ""
        is_wrapped = isinstance(node, ast.Attribute) and node.attr == "__wrapped__"
        if is_wrapped and isinstance(getattr(node, "ctx", None), ast.Load):
            return WRAPPED
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = node.name
            if name in names and imports.is_emitted(node, name, manner):
                name = ""
        elif isinstance(node, ast.alias) and not imports.is_of_jax(node, module):
            name = node.asname or node.name
        if name == "jax" and not isinstance(node, ast.alias):
            return JAX_TAKEN
        if name in names:
            return TAKEN.format(name)
    return ""


def _left(
    module: Module, data: bytes, planned: Planned, removed: dict[Place, str], reason: str
) -> Rewriting:
    """Returns a file as it is; a site that has a reason of its own keeps it."""
    sites = [(each.site, reason) if isinstance(each, Plan) else each for each in planned]
    return Rewriting(
        module.path, data, data, tuple(_outcomes(module, sites, removed, set(), reason))
    )


def _what(site: Site) -> str:
    words = {"decorator": "decorator", "partial": "partial", "value": "value", "wrapper": "wrapper"}
    word = words.get(site.kind, "called at once" if site.is_called_at_once else "call")
    return f"jax.pmap ({word})"


def _outcomes(
    module: Module,
    planned: Planned,
    removed: dict[Place, str],
    done: set[Place],
    otherwise: str = LOST,
) -> list[Outcome]:
    found = [
        Outcome(each.site.name, _what(each.site), "" if each.site.name in done else otherwise)
        if isinstance(each, Plan)
        else Outcome(each[0].name, _what(each[0]), each[1])
        for each in planned
    ]
    found += [
        Outcome(place, _NAMES[name], "" if place in done else otherwise)
        for place, name in removed.items()
    ]
    found = [
        dataclasses.replace(each, cell=module.source.cell_of(each.place.line)) for each in found
    ]
    return sorted(found, key=lambda each: (each.place.line, each.place.column))
