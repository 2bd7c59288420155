"""From the global form to plain ``jax.jit``: what is batch-parallel, proven by two runs."""

from __future__ import annotations

import ast
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.codemod.evidence.proof_run import ProofError
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.to_jit import (
    axis_arguments,
    collective_edits,
    costs,
    shared_code,
    site_edits,
)
from pmapx._src.codemod.to_jit.candidates import candidates
from pmapx._src.codemod.to_jit.decisions import Decision, Replaced, Span, decisions, site_name
from pmapx._src.codemod.to_jit.original_lines import OriginalLines
from pmapx._src.codemod.to_jit.placement import process_batches
from pmapx._src.codemod.to_jit.placement.sharded_state import sharded
from pmapx._src.codemod.to_jit.placement.version import Version
from pmapx._src.codemod.to_jit.site_edits import SiteEditor
from pmapx._src.codemod.to_jit.stacked import stacked_edits
from pmapx._src.codemod.write import file_head
from pmapx._src.codemod.write.rewrite import Rewriting, broken
from pmapx._src.emitted.functions import Manner
from pmapx._src.source import files as sources
from pmapx._src.source.discovery import Unreadable, files_below
from pmapx._src.source.location import Place
from pmapx._src.source.rewriting.edits import Edit, Origins, applied, starts
from pmapx._src.verify.uses import uses_below
from pmapx._src.watch import record_files
from pmapx._src.watch.run_in_copy import Command, Ran

_MAPS = "pmapx._src.codemod.to_jit.map_listener:start"
_AUTO, _EXPLICIT = b"jax.sharding.AxisType.Auto", b"jax.sharding.AxisType.Explicit"
_JITS = "pmapx._src.codemod.to_jit.jit_listener:start"


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """What became of one map.

    Attributes:
      place: of the map in the file as it was written in the global form.
      function: its name.
      reason: why it keeps ``jax.shard_map``; empty: it is a jitted function.
      detail: how it was compared.
      replaced: what became of each collective that it reaches.
      notes: what a call costs in both forms, and why its mesh has no Explicit axes.
    """

    place: Place
    function: str
    reason: str = ""
    detail: str = ""
    replaced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """The form, and the reason."""
        return f"keeps shard_map: {self.reason}" if self.reason else f"jit: {self.detail}"


def convert(
    paths: Sequence[str],
    exclude: Sequence[str],
    files: Sequence[Rewriting],
    command: Command,
    root: Path,
    *,
    mesh: str,
    with_fsdp: bool,
    topology: str | None,
) -> tuple[list[Rewriting], list[Form]]:
    """Returns files in the global form with the maps that are batch-parallel as jitted functions.

    The command runs once on the files as they are, and again on each version that is tried, in
    copies of the tree ``root``. ``topology`` is a target for which both forms are audited too.

    Raises:
      ProofError: if the command does not run to its end on the files as they are.
    """
    texts = {os.path.realpath(file.path): file.after for file in files}
    with tempfile.TemporaryDirectory(prefix="pmapx-samples-") as kept:
        first = Path(kept, "maps")
        changed = {Path(path): data for path, data in texts.items()}
        # A use of pmap that is left runs as it did.
        _, has_removed = uses_below(root, exclude, changed)
        is_legacy = has_removed or any(each.reason for file in files for each in file.outcomes)
        run = functools.partial(command.run, root=root, is_legacy=is_legacy)
        settings = {"topology": topology, "samples": str(first)}
        ran = run(_MAPS, first, changed=changed, settings=settings, step="shard_map")
        if ran.failure:
            raise ProofError(f"in the global form, {ran.failure}")
        program = _Program(paths, exclude, texts)
        found = [each for module in program.modules for each in candidates(module)]
        made = decisions(found, record_files.read(first, "maps"), ran.copy)
        for each in made:
            is_asked = each.is_constrained and not each.reasons
            why = site_edits.obstacle(each.candidate) if is_asked else ""
            if why:
                at = f"{os.path.basename(each.candidate.module.path)}:{each.candidate.place.line}"
                each.refuse(f"its arguments cannot be sharded where it is defined ({at}): {why}")
        holds = functools.partial(_holds, run, texts, settings, kept)
        while True:
            shared_code.refuse_conflicts(made, program.modules)
            axis_arguments.refuse_unknown(made, program.modules)
            stacked_edits.refuse_unknown(made)
            chosen = [each for each in made if not each.reasons]
            after, sites = program.written(chosen, root)
            if not chosen or holds(chosen, sites, after):
                break
        if chosen:
            version = Version(root, {**program.data, **after}, sites)
            proven = lambda chosen, new: holds(chosen, new.sites, new.data)
            version = process_batches.placed(version, chosen, proven)
            version = sharded(version, chosen, proven) if with_fsdp else version
            sites = version.sites
            after = {path: data for path, data in version.data.items()
                     if path in after or data != program.data[path]}  # fmt: skip
        if chosen and mesh == "explicit":
            after = _explicit(made, sites, after, holds)
    lines = OriginalLines(files, [each.candidate.place for each in made])
    forms = [_form(each, lines) for each in made]
    forms.sort(key=lambda form: (form.place.path, starts(form.place)))
    rewritten = [
        dataclasses.replace(file, after=after.get(os.path.realpath(file.path), file.after))
        for file in files
    ]
    known = {os.path.realpath(file.path) for file in files}
    rewritten += [
        Rewriting(program.path_of(path), program.data[path], data, ())
        for path, data in after.items()
        if path not in known
    ]
    return rewritten, forms


def _holds(
    run: Callable[..., Ran],
    texts: Mapping[str, bytes],
    settings: Mapping[str, Any],
    kept: str,
    chosen: Sequence[Decision],
    sites: Sequence[Mapping[str, Any]],
    after: Mapping[str, bytes],
) -> bool:
    """Runs a version; refuses the maps that differ in it, and returns whether there are none."""
    with tempfile.TemporaryDirectory(prefix="jit-", dir=kept) as folder:
        changed = {Path(path): data for path, data in {**texts, **after}.items()}
        given = {**settings, "sites": sites}
        ran = run(_JITS, Path(folder), changed=changed, settings=given, step="jit")
        records = record_files.read(folder, "compared")
    results: dict[str, list[Mapping[str, Any]]] = {}
    for process in records:
        for site in process["sites"]:
            results.setdefault(site["site"], []).append(site)
    names = {site["name"]: decision for site, decision in zip(sites, chosen, strict=True)}
    for name, decision in names.items():
        for result in results.get(name, []):
            if result["failure"]:
                decision.refuse(f"the jit form does not agree: {result['failure']}")
        decision.compared = results.get(name, [])
        called = min((result["calls"] for result in decision.compared), default=0)
        if not decision.reasons and called < decision.calls:
            decision.refuse(ran.failure or f"{called} of {decision.calls} calls were compared")
    if ran.failure and not any(decision.reasons for decision in chosen):
        for decision in chosen:
            decision.refuse(f"with jax.jit, {ran.failure}")
    return not any(decision.reasons for decision in chosen)


def _explicit(
    made: Sequence[Decision],
    sites: Sequence[Mapping[str, Any]],
    after: dict[str, bytes],
    holds: Callable[..., bool],
) -> dict[str, bytes]:
    """Returns the files with Explicit mesh axes if JAX accepts all steps with them, or as they are.

    With such axes a step fails where JAX would have to choose a sharding.
    """
    kept = [each for each in made if each.reasons]
    if kept:
        note = f"its mesh has Auto axes: {kept[0].name} keeps jax.shard_map"
    else:
        new = {path: data.replace(_AUTO, _EXPLICIT) for path, data in after.items()}
        before, ours = [each.compared for each in made], [_cost(each) for each in made]
        note = "its mesh has Auto axes: with Explicit ones, "
        if holds(made, sites, new):
            if not any(
                costs.is_worse(_cost(each), old) for each, old in zip(made, ours, strict=True)
            ):
                return new
            note += "a step sends more, or needs more memory"
        else:
            refused = next((each for each in made if each.reasons), made[0])
            note += f"{refused.name} fails: {'; '.join(refused.reasons[:1])}"
        for each, compared in zip(made, before, strict=True):
            each.reasons, each.compared = [], compared
    for each in made:
        each.notes.append(note)
    return after


def _cost(decision: Decision) -> Mapping[str, Any]:
    """Returns what a call costs with ``jax.jit``."""
    return next((each["cost"] for each in decision.compared if each["cost"]), {})


def _form(decision: Decision, lines: OriginalLines) -> Form:
    place, name = lines.place(decision.candidate.place), decision.name
    if decision.reasons:
        return Form(place, name, lines.text(decision.reasons[0]))
    compared = sum(each["compared"] for each in decision.compared)
    drawn = sum(each["drawn"] for each in decision.compared)
    drift: list[float] = max((r["drift"] for r in decision.compared), key=len, default=[])
    detail = f"agrees on {compared} inputs, {drawn} of them random"
    if len(drift) > 1:
        detail += f"; after {len(drift)} calls, results differ by {drift[-1]:.1g} of their size"
    replaced = dict.fromkeys(
        lines.text(f"{os.path.basename(each.span[0])}:{each.span[1]}: {each.meaning}")
        for _, each in sorted(decision.replaced.items())
        if each.meaning
    )
    unused = [
        f"argument {position} is a per-device value, on which no result depends: the first is used"
        for position in sorted(decision.per_device)
    ]
    cost = decision.replicated or _cost(decision)
    notes = (*unused, *costs.in_words(cost, decision.cost), *decision.notes)
    return Form(place, name, "", detail, tuple(replaced), notes)


class _Program:
    """The files in the global form, and their versions with jitted functions."""

    def __init__(
        self, paths: Sequence[str], exclude: Sequence[str], texts: Mapping[str, bytes]
    ) -> None:
        found = files_below(paths, exclude=exclude)
        given = [path for path in found if not isinstance(path, Unreadable)]
        self._paths = {os.path.realpath(path): path for path in given if path.endswith(".py")}
        project = Project(given)
        self.data: dict[str, bytes] = {}
        self.modules: list[Module] = []
        for real, path in self._paths.items():
            data = texts.get(real) or sources.read_bytes(path)
            if isinstance(data, bytes):
                self.data[real] = data
        project.texts = {os.path.normpath(self._paths[real]): d for real, d in self.data.items()}
        for real, data in self.data.items():
            module = project.module(self._paths[real], data=data) if b"jax" in data else None
            if module is not None:
                self.modules.append(module)

    def path_of(self, real: str) -> str:
        return self._paths[real]

    def written(
        self, chosen: Sequence[Decision], root: Path
    ) -> tuple[dict[str, bytes], Sequence[Mapping[str, Any]]]:
        """Returns the files with some maps as jitted functions, and where these are made."""
        after: dict[str, bytes] = {}
        sites: dict[Decision, dict[str, Any]] = {}
        replaced: dict[Span, Replaced] = {}
        for each in chosen:
            replaced |= each.replaced
        for module in self.modules:
            real = os.path.realpath(module.path)
            here = [each for each in chosen if each.candidate.module is module]
            calls = {span: each for span, each in replaced.items() if span[0] == real}
            axes = [each.axis for each in chosen if each.libraries]
            if not here and not calls and not any(axis_arguments.calls(module, axes)):
                continue
            edits = _edits(module, here, calls, axes)
            after[real] = applied(self.data[real], edits)
            problem = broken(module, after[real])
            if problem:
                raise ProofError(problem)
            for each in here:
                sites[each] = _site(each, self.data[real], after[real], edits, root)
        return after, [sites[each] for each in chosen]


def _edits(
    module: Module,
    here: Sequence[Decision],
    calls: Mapping[Span, Replaced],
    axes: Sequence[str],
) -> list[Edit]:
    editor = Editor(module.source)
    axis_arguments.edit(module, axes, editor)
    collective_edits.edit(module, calls, editor)
    for each in here:
        stacked_edits.edit(each, editor)
    writer = SiteEditor(module, editor)
    for each in sorted(here, key=lambda d: starts(d.candidate.place), reverse=True):
        writer.edit(each)
    writer.finish()
    if not any("jax" in edit.text for edit in editor.edits):
        return editor.edits
    wanted = ["import functools"] if writer.needs_functools else []
    return [
        *editor.edits,
        *file_head.added(module, editor, set(), Manner.PLAIN, wanted),
    ]


def _site(
    decision: Decision, before: bytes, after: bytes, edits: Sequence[Edit], root: Path
) -> dict[str, Any]:
    """Returns where the jitted function is made, and what its samples are kept by."""
    path = decision.candidate.module.path
    origins, parsed = Origins(before, edits), sources.parse(path, after)
    wanted = starts(decision.candidate.place)
    relative = os.path.relpath(os.path.realpath(path), root)
    (span, *_) = sorted(decision.jit_spans)
    name = site_name(relative, span[1], span[2])
    for node in ast.walk(parsed.tree):  # type: ignore[union-attr]
        if isinstance(node, ast.Call | ast.Attribute):
            place = parsed.place(node)  # type: ignore[union-attr]
            if starts(origins.place(place)) == wanted and "jax.jit" in ast.unparse(node):
                return {
                    "file": relative, "line": place.line, "end_line": place.end_line, "name": name,
                }  # fmt: skip
    raise ProofError(f"{decision.name} cannot be found in the rewritten file")
