"""From paths to findings: what ``pmapx check`` does between its options and its output."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence

from pmapx.migrate import division, parallel, rules, sources, suppressions
from pmapx.migrate.discovery import Unreadable, files_below
from pmapx.migrate.division import Load
from pmapx.migrate.findings import Finding
from pmapx.migrate.project import Project
from pmapx.migrate.rules.unread_file import UnreadFile
from pmapx.migrate.settings import Settings

Progress = Callable[[int, int], None]
# Starting a process costs about as much as reading this many bytes, and copying this one.
WORTH_A_PROCESS = 400_000
WORTH_A_COPY = 60_000
# Bytes of files without a word that are kept, to be looked at again for names of wrappers.
KEPT = 256 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What was found, in the order of files and lines."""

    findings: list[Finding]
    files: int
    files_with_uses: int


@dataclasses.dataclass(slots=True)
class _Reading:
    """What one process learned."""

    findings: list[Finding]
    unreadable: dict[str, str]
    # Names under which other files may use what these files wrap.
    wrappers: set[tuple[str, str]]


def check(
    paths: Sequence[str],
    settings: Settings | None = None,
    *,
    processes: int | None = 1,
    progress: Progress | None = None,
) -> Report:
    """Returns the findings in all files below the paths; nothing is imported, run or written.

    ``processes=None`` starts as many as pay; the program that asks for that must be one whose
    main module can be imported again, as ``multiprocessing`` wants it.
    """
    settings = settings or Settings()
    advance = progress or (lambda done, total: None)
    found: list[Finding] = []
    given: list[str] = []
    for item in files_below(paths, exclude=settings.exclude):
        if isinstance(item, Unreadable):
            found.append(UnreadFile.of_file(item.path, item.reason))
        else:
            given.append(item)
    uses, others = _sift(given, found, advance)
    project = Project(given, is_partial=True)
    new, known = uses, set[tuple[str, str]]()
    while new:
        reading = _read(project, new, processes, advance)
        found += reading.findings
        found += [UnreadFile.of_file(path, why) for path, why in reading.unreadable.items()]
        # A wrapper's users need not mention pmap or JAX at all.
        new = _users(reading.wrappers - known, others)
        known |= reading.wrappers
        others = {path: data for path, data in others.items() if path not in new}
        uses |= new
    reported = _unique(
        finding
        for finding in found
        if settings.reports(finding.place.path, finding.code, finding.confidence)
    )
    return Report(reported, len(given), len(uses))


def _sift(
    given: Sequence[str], found: list[Finding], advance: Progress
) -> tuple[dict[str, Load], dict[str, bytes | None]]:
    """Reads every file and sets those apart that have one of the words."""
    uses: dict[str, Load] = {}
    others: dict[str, bytes | None] = {}
    kept = 0
    for number, path in enumerate(given):
        data = sources.read_bytes(path)
        if isinstance(data, Unreadable):
            found.append(UnreadFile.of_file(path, data.reason))
        elif sources.mentions(data):
            uses[path] = Load.of(path, data)
        else:
            kept += len(data)
            others[path] = data if kept < KEPT else None
        if number % 64 == 0:
            advance(number, len(given))
    return uses, others


def _users(wrappers: set[tuple[str, str]], others: dict[str, bytes | None]) -> dict[str, Load]:
    """Returns the files that import a wrapper's module and name the wrapper."""
    by_module: dict[bytes, list[bytes]] = {}
    for name, stem in wrappers:
        by_module.setdefault(stem.encode(), []).append(name.encode())
    users = {}
    if by_module:
        for path, kept in others.items():
            data = kept if kept is not None else sources.read_bytes(path)
            if isinstance(data, Unreadable):
                continue
            modules = sources.imported_words(data) & by_module.keys()
            if any(name in data for module in modules for name in by_module[module]):
                users[path] = Load.of(path, data)
    return users


def _read(
    project: Project, uses: dict[str, Load], processes: int | None, advance: Progress
) -> _Reading:
    """Reads the files with uses, in several processes where that pays.

    Each share is read on its own, in however many processes, so that the report is the same.
    """
    count = processes or _count_that_pays(sum(load.weight for load in uses.values()))
    shares = division.shares(uses)
    # A copy of this process has the project; another has to be told of its files.
    is_told = count > 1 and len(shares) > 1 and not parallel.can_fork()
    read = (
        functools.partial(_read_apart, list(project.paths.values()))
        if is_told
        else functools.partial(_read_share, project)
    )
    whole = _Reading([], {}, set())
    for part in parallel.each(read, shares, count, advance):
        whole.findings += part.findings
        whole.unreadable |= part.unreadable
        whole.wrappers |= part.wrappers
    return whole


def _count_that_pays(size: int) -> int:
    worth = WORTH_A_COPY if parallel.can_fork() else WORTH_A_PROCESS
    return min(parallel.processors(), 8, 1 + size // worth)


def _read_share(project: Project, todo: list[str]) -> _Reading:
    return _read_into(project.anew(), todo)


def _read_apart(given: Sequence[str], todo: list[str]) -> _Reading:
    """What another process does: modules that its files use are read there too."""
    return _read_into(Project(given, is_partial=True), todo)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Trees are all kept, so that collecting garbage among them finds none and takes long."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # Straight to the oldest generation, else the next young collection visits every tree.
            gc.freeze()
            gc.unfreeze()
            gc.enable()


@_no_collection()
def _read_into(project: Project, todo: list[str]) -> _Reading:
    for path in todo:
        data = sources.read_bytes(path)
        if isinstance(data, Unreadable):
            project.unreadable[path] = data.reason
        else:
            project.module(path, data=data)
    return _Reading(_findings(project), project.unreadable, project.wrappers())


def _findings(project: Project) -> list[Finding]:
    """Runs every rule on every module that was read."""
    found = []
    for module in [*project.modules.values(), *project.parts]:
        if module is None or not module.is_read:
            continue
        comments = suppressions.suppressed(module.source.text)
        for rule in rules.all_rules().values():
            for finding in rule().check(module):
                place = finding.place
                lines = range(place.line, place.end_line + 1)
                if not suppressions.is_suppressed(finding.code, lines, comments):
                    found.append(
                        dataclasses.replace(
                            finding,
                            line_text=module.source.line(place.line),
                            cell=module.source.cell_of(place.line),
                        )
                    )
    return found


def _unique(found: Iterable[Finding]) -> list[Finding]:
    """Sorts, and keeps the surest of those that say the same of one place."""
    best: dict[object, Finding] = {}
    for finding in found:
        key = (finding.place, finding.code)
        if key not in best or finding.rank < best[key].rank:
            best[key] = finding
    return sorted(best.values(), key=lambda f: (f.place.path, f.place.line, f.place.column, f.code))
