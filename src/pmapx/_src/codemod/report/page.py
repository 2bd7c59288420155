"""The page of ``pmapx migrate --report``: every site, what became of it, and the code around it."""

from __future__ import annotations

import collections
import dataclasses
import enum
import io
import re
import tokenize
from collections.abc import Mapping, Sequence

from pmapx._src.analysis.values import Place
from pmapx._src.codemod.program import Migration
from pmapx._src.codemod.replicated.style import Gain, Stay
from pmapx._src.codemod.report.line_counts import LineCounts, line_counts
from pmapx._src.codemod.report.side_by_side import aligned
from pmapx._src.codemod.write.rewrite import Outcome, Rewriting
from pmapx._src.lint import rules
from pmapx._src.pages import shell
from pmapx._src.source import files as sources

STYLES = ("shell.css", "diff.css", "migration.css")
SCRIPTS = ("shell.js", "diff.js", "listing.js", "overview.js", "migration.js")
# Characters of a line in the list of sites.
WIDEST = 160


class State(enum.StrEnum):
    """What became of a site; the last four only where its result was compared."""

    REWRITTEN = enum.auto()
    LEFT = enum.auto()
    VERIFIED = enum.auto()
    DIFFERENT = enum.auto()
    UNVERIFIED = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The result of comparing a site before and after: its state, and a note."""

    state: State
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class SiteReport:
    """One site: where it was, what it is, by which rule, and what became of it."""

    line: int
    column: int
    what: str
    rule: str
    state: State
    note: str = ""
    # In the replicated style: what has no axis of devices now, and what keeps it, each with why.
    replicated: tuple[str, ...] = ()
    stacked: tuple[tuple[str, str], ...] = ()
    # In the jit form: what became of its collectives, and what a call costs.
    costs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class FileReport:
    """One file: its text before and after, and its sites in the order of lines."""

    path: str
    before: str
    after: str
    sites: tuple[SiteReport, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class MigrationReport:
    """All that the page shows; ``unread`` are paths with the reason why they were not read.

    >>> site = SiteReport(2, 4, "jax.pmap (call)", "PMX501", State.REWRITTEN)
    >>> file = FileReport("a.py", "import jax\\nf = jax.pmap(g)", "import jax\\nf = g", (site,))
    >>> "a.py" in render(MigrationReport((file,), read=1))
    True
    """

    files: tuple[FileReport, ...]
    read: int
    unread: tuple[tuple[str, str], ...] = ()
    is_written: bool = False
    # Names that JAX removed and that are replaced, in files with and without a site.
    renamed: int = 0


def report(
    done: Migration,
    *,
    is_written: bool = False,
    failed: Mapping[str, str] | None = None,
    verdicts: Mapping[tuple[str, int], Verdict] | None = None,
) -> MigrationReport:
    """Returns what the page shows of a migration.

    Args:
      done: The files and what became of their sites.
      is_written: Whether the files were written.
      failed: Files that could not be written, and why.
      verdicts: The result of a comparison, by the path and the line before. A rewritten site
        without one is unverified; None if nothing was compared.
    """
    failed = failed or {}
    replication = Replication(done)
    files = tuple(
        FileReport(
            file.path,
            _text(file, file.before),
            _text(file, file.after),
            tuple(
                replication.added(_site(file, each, failed.get(file.path, ""), verdicts), each)
                for each in file.outcomes
            ),
        )
        for file in done.files
    )
    unread = tuple((each.path, each.reason) for each in done.unreadable)
    return MigrationReport(files, done.read, unread, is_written, done.renamed)


def render(shown: MigrationReport) -> str:
    """Returns the page, one document that loads nothing."""
    sites = [
        (
            number,
            site.line,
            site.column,
            text,
            site.what,
            site.rule,
            site.state,
            site.note,
            site.replicated,
            site.stacked,
            site.costs,
        )
        for number, file in enumerate(shown.files)
        for site, text in zip(file.sites, _first_lines(file), strict=True)
    ]
    lines = counted(shown)
    known = {code: rule.summary() for code, rule in rules.all_rules().items()}
    used = sorted({site.rule for file in shown.files for site in file.sites})
    index = {
        "files": [file.path for file in shown.files],
        "sites": sites,
        "rules": {code: known.get(code, "") for code in used},
        "unread": shown.unread,
        "read": shown.read,
        "written": shown.is_written,
        "lines": dataclasses.astuple(lines),
        "renamed": shown.renamed,
    }
    # A file's block is parsed when it is looked at.
    blocks = {f"file-{number}": _file(file) for number, file in enumerate(shown.files)}
    return shell.render(
        "pmapx migrate", {"report": index, **blocks}, STYLES, SCRIPTS, _in_words(shown, lines)
    )


def counted(shown: MigrationReport) -> LineCounts:
    """Returns the lines that all changes add and remove."""
    changed = [file for file in shown.files if file.before != file.after]
    counts = (line_counts(_lines(file.before), _lines(file.after)) for file in changed)
    return sum(counts, LineCounts())


class Replication:
    """What the replicated style and the jit form change at each site of a migration."""

    def __init__(self, done: Migration) -> None:
        self._outcomes = [
            each
            for file in done.files
            for each in file.outcomes
            if each.what.startswith("jax.pmap")
        ]
        self._replicated: dict[Place, list[str]] = {}
        self._stacked: dict[Place, list[tuple[str, str]]] = {}
        self._forms = {(each.place.path, each.place.line): each for each in done.forms}
        for gain in done.gains:
            at = self._site_of(gain)
            if at is not None:
                self._replicated.setdefault(at, []).append(gain.what + _elsewhere(gain, at))
        for stay in done.stays:
            at = self._site_of(stay)
            if at is not None:
                what = stay.what + _elsewhere(stay, at)
                self._stacked.setdefault(at, []).append((what, stay.reason))

    def added(self, site: SiteReport, outcome: Outcome) -> SiteReport:
        if outcome not in self._outcomes:
            return site
        form = self._forms.get((outcome.place.path, outcome.place.line))
        words = form.in_words if form is not None else ""
        return dataclasses.replace(
            site,
            note="; ".join(part for part in (site.note, words) if part),
            costs=() if form is None else (*form.replaced, *form.notes),
            replicated=tuple(self._replicated.get(outcome.place, ())),
            stacked=tuple(self._stacked.get(outcome.place, ())),
        )

    def _site_of(self, found: Gain | Stay) -> Place | None:
        """Returns where the pmap is written: in the call, or in what it is mapped through."""
        for around in (found.place, found.site):
            for outcome in self._outcomes:
                if outcome.place.is_inside(around):
                    return outcome.place
        return None


def _elsewhere(found: Gain | Stay, site: Place) -> str:
    """Returns where a pmap is applied that is written at another place."""
    if site.is_inside(found.place):
        return ""
    is_near = found.place.path == site.path
    return f" (line {found.place.line})" if is_near else f" ({found.place.path}:{found.place.line})"


def _site(
    file: Rewriting,
    outcome: Outcome,
    failure: str,
    verdicts: Mapping[tuple[str, int], Verdict] | None,
) -> SiteReport:
    place = outcome.place
    state, note = State.REWRITTEN, ""
    if outcome.reason or failure:
        state, note = State.LEFT, outcome.reason or f"the file was not written: {failure}"
    elif verdicts is not None:
        never = Verdict(State.UNVERIFIED, "the command did not reach it")
        verdict = verdicts.get((file.path, place.line), never)
        state, note = verdict.state, verdict.note
    return SiteReport(place.line, place.column, outcome.what, _rule(outcome), state, note)


def _rule(outcome: Outcome) -> str:
    """Returns the code of the rule that finds what the outcome is about."""
    name, _, kind = outcome.what.removeprefix("jax.").partition(" ")
    wanted = {"pmap": "pmap-as-value" if kind == "(value)" else "pmap-use"}
    wanted["flax.jax_utils.replicate"] = "replicate-call"
    slug = wanted.get(name, name.replace("_", "-"))
    by_slug = {rule.slug(): code for code, rule in rules.all_rules().items()}
    return by_slug.get(slug, by_slug["pmap-use"])


def _text(file: Rewriting, data: bytes) -> str:
    """Returns a file as its sites count lines: of a notebook, the code cells."""
    if file.path.endswith(".ipynb"):
        source = sources.parse(file.path, data)
        if isinstance(source, sources.Source):
            return source.text
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding, "backslashreplace")
    except (SyntaxError, LookupError):
        return data.decode("utf-8", "backslashreplace")


def _first_lines(file: FileReport) -> list[str]:
    """Returns the line of each site, as far as a list shows it."""
    lines = _lines(file.before)
    return [
        lines[site.line - 1].strip()[:WIDEST] if site.line <= len(lines) else ""
        for site in file.sites
    ]


def _file(file: FileReport) -> dict[str, object]:
    """Returns the old lines, the new ones, and the steps that align them."""
    before, after = _lines(file.before), _lines(file.after)
    steps = aligned(before, after)
    new: list[str] = []
    position = 0
    for kind, count in steps:
        if kind in "+~":
            new += after[position : position + count]
        position += count if kind != "-" else 0
    return {"before": before, "new": new, "steps": steps}


def _lines(text: str) -> Sequence[str]:
    lines = re.split("\r\n|\r|\n", text)
    return lines if lines[-1] else lines[:-1]


def _in_words(shown: MigrationReport, lines: LineCounts) -> str:
    """Returns the totals, for a browser without scripts."""
    counts = collections.Counter(site.state for file in shown.files for site in file.sites)
    names = {State.REWRITTEN: "rewritten" if shown.is_written else "to rewrite"}
    states = ", ".join(f"{counts[s]} {names.get(s, s)}" for s in State if counts[s])
    every = [site for file in shown.files for site in file.sites]
    replicated = sum(bool(site.replicated) for site in every)
    if replicated or any(site.stacked for site in every):
        stacked = sum(bool(site.stacked) for site in every)
        states += f"; {replicated} with values that become replicated"
        states += f", {stacked} with values that stay stacked"
    total = f"{len(every)} uses in {shown.read} files: {states}. {lines}."
    return f"{total} The page needs its script."
