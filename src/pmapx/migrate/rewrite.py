"""One file from pmap to shard_map: the sites that have a plan, and nothing else, with LibCST."""

from __future__ import annotations

import ast
import dataclasses

import libcst as cst
from libcst.metadata import MetadataWrapper

from pmapx.migrate import emitted, imports, plans, suppressions
from pmapx.migrate.changer import Changer
from pmapx.migrate.module import Module
from pmapx.migrate.plans import Plan
from pmapx.migrate.sites import Site, find_sites
from pmapx.migrate.values import Named, Place

REMOVED = ("jax.device_put_replicated", "jax.device_put_sharded")
PROCESSES = (
    "the program starts several processes (jax.distributed.initialize): shard_map takes global "
    "arrays there, and what each process loads has to be stitched"
)
NOTEBOOK = "in a notebook: move the code to a module, or change the cell by hand"
TAKEN = "the name {} that its rewrite needs means something else in this file"
JAX_TAKEN = "the name jax means something else in this file"
WRAPPED = "__wrapped__ is used in this file, which is another function after the rewrite"
LOST = "not found again in the file"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one place; ``reason`` says why it is left, and is empty if it is not."""

    place: Place
    what: str
    reason: str = ""


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


def rewrite(module: Module, data: bytes, *, in_processes: bool = False) -> Rewriting:
    """Returns the file with its uses of pmap rewritten, and what became of each.

    >>> from pmapx.migrate.project import Project
    >>> project, data = Project(["a.py"]), b"import jax\\nf = jax.pmap(abs, axis_name='i')\\n"
    >>> done = rewrite(project.module("a.py", data=data), data)
    >>> done.after.decode().splitlines()[-1]
    "f = jax.jit(one_row_each(abs, axis_name='i'))"
    """
    comments = suppressions.suppressed(module.source.text)
    sites = [
        site
        for site in find_sites(module)
        if not suppressions.is_suppressed("PMX501", _lines(site.whole), comments)
    ]
    planned = plans.plan(module, sites)
    removed = _removed_names(module)
    if module.source.cells:
        return _left(module, data, sites, removed, NOTEBOOK)
    if in_processes:
        return _left(module, data, sites, {}, PROCESSES)
    reason = _obstacle(module, _wanted(planned, removed))
    if reason:
        return _left(module, data, sites, removed, reason)
    try:
        tree = cst.parse_module(data)
    except (cst.ParserSyntaxError, UnicodeDecodeError, LookupError, RecursionError) as error:
        return _left(module, data, sites, removed, f"LibCST does not read it: {_line(error)}")
    if tree.bytes != data:
        return _left(module, data, sites, removed, "LibCST does not write it as it read it")
    changer = Changer([each for each in planned if isinstance(each, Plan)], removed)
    try:
        wrapper = MetadataWrapper(tree, unsafe_skip_copy=True)
        after = imports.add(wrapper.visit(changer), changer.used, module).bytes
        ast.parse(after)
    except (RecursionError, SyntaxError, cst.CSTValidationError) as error:
        return _left(module, data, sites, removed, f"its rewrite is not sound: {_line(error)}")
    return Rewriting(module.path, data, after, tuple(_outcomes(planned, removed, changer.done)))


def _lines(place: Place) -> range:
    return range(place.line, place.end_line + 1)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


def _removed_names(module: Module) -> dict[Place, str]:
    """Returns where the module uses the functions that JAX removed, and which."""
    return {
        module.place(reference.node): reference.name.rpartition(".")[2]
        for reference in module.facts.references.values()
        if reference.name in REMOVED
        and reference.by != "import"
        and reference.is_certain
        and not reference.is_guarded
    }


def _wanted(planned: list[Plan | tuple[Site, str]], removed: dict[Place, str]) -> set[str]:
    return {
        emitted.FUNCTION_OF[plan.form, plan.is_kept] for plan in planned if isinstance(plan, Plan)
    } | set(removed.values())


def _obstacle(module: Module, wanted: set[str]) -> str:
    """Returns why no site of the file can be rewritten, if so."""
    bound = module.env.find("jax")
    if bound is not None and bound != frozenset({Named("jax")}):
        return JAX_TAKEN
    names = emitted.with_needs(wanted)
    for node in ast.walk(module.source.tree):
        name = ""
        if isinstance(node, ast.Attribute) and node.attr == "__wrapped__":
            return WRAPPED
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = node.name
            if name in names and imports.is_emitted(module.source, node, name):
                name = ""
        elif isinstance(node, ast.alias) and not imports.is_of_jax(node, module):
            name = node.asname or node.name
        if name == "jax" and not isinstance(node, ast.alias):
            return JAX_TAKEN
        if name in names and not (name == "kept_one_row_each" and isinstance(node, ast.Name)):
            return TAKEN.format(name)
    return ""


def _left(
    module: Module, data: bytes, sites: list[Site], removed: dict[Place, str], reason: str
) -> Rewriting:
    outcomes = [Outcome(site.name, _what(site), reason) for site in sites]
    outcomes += [Outcome(place, f"jax.{name}", reason) for place, name in removed.items()]
    return Rewriting(module.path, data, data, tuple(_in_order(outcomes)))


def _what(site: Site) -> str:
    words = {"decorator": "decorator", "partial": "partial", "value": "value", "wrapper": "wrapper"}
    word = words.get(site.kind, "called at once" if site.is_called_at_once else "call")
    return f"jax.pmap ({word})"


def _outcomes(
    planned: list[Plan | tuple[Site, str]], removed: dict[Place, str], done: set[Place]
) -> list[Outcome]:
    found = [
        Outcome(each.site.name, _what(each.site), "" if each.site.name in done else LOST)
        if isinstance(each, Plan)
        else Outcome(each[0].name, _what(each[0]), each[1])
        for each in planned
    ]
    found += [
        Outcome(place, f"jax.{name}", "" if place in done else LOST)
        for place, name in removed.items()
    ]
    return _in_order(found)


def _in_order(outcomes: list[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda each: (each.place.line, each.place.column))
