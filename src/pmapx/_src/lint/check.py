"""From paths to findings, without the command line."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pmapx._src.lint.finding import Finding
from pmapx._src.lint.searched_names import has_uses
from pmapx._src.lint.settings import Settings
from pmapx._src.source import gc_paused, parallel, prefilter
from pmapx._src.source.discovery import Unreadable, files_below, is_part_of_jax
from pmapx._src.source.parallel import Progress
from pmapx._src.source.prefilter import Load, Sifted

if TYPE_CHECKING:
    from pmapx._src.analysis.project import Project
    from pmapx._src.lint.worker import Reading


# Starting a process costs about as much as reading this many bytes, and copying this one.
WORTH_A_PROCESS = 400_000
WORTH_A_COPY = 60_000
# Looking at this many files costs more than copying this process.
FILES_WORTH_A_COPY = 400
# Files are searched in so many parts, of so many files at least.
PARTS = 100
SMALLEST_PART = 50


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The findings in the order of files and lines, and the files that were checked."""

    findings: list[Finding]
    paths: list[str]
    files_with_uses: int
    # Findings that a baseline has, and those of a baseline that no longer occur.
    known: int = 0
    gone: int = 0

    @property
    def files(self) -> int:
        """How many files were checked."""
        return len(self.paths)


def check(
    paths: Sequence[str],
    settings: Settings | None = None,
    *,
    processes: int | None = 1,
    progress: Progress | None = None,
) -> Report:
    r"""Returns the findings in all files below the paths; no file is imported, run or written.

    Examples:
      >>> import pathlib, tempfile, pmapx
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "train.py").write_text("import jax\nstep = jax.pmap(lambda x: x + 1)\n")
      >>> [(finding.code, finding.place.line) for finding in pmapx.check([str(folder)]).findings]
      [('PMX501', 2)]

    Args:
      paths: files and folders.
      settings: which findings to report; by default those of medium confidence and above.
      processes: how many processes to use. None chooses a number; the main module must then be
        importable, as ``multiprocessing`` requires.
      progress: called with the number of files that were checked, and of all.
    """
    settings = settings or Settings()
    advance = progress or (lambda done, total: None)
    unread: list[tuple[str, str]] = []
    given: list[str] = []
    with gc_paused.left_alone():
        for item in files_below(paths, exclude=settings.exclude):
            if isinstance(item, Unreadable):
                unread.append((item.path, item.reason))
            else:
                given.append(item)
        sifted = _sift(given, processes, advance)
    unread += sifted.unreadable.items()
    uses = sifted.uses
    found = _read(given, sifted, processes, advance) if uses else []
    found += _of_unread(unread) if unread else []
    reported = _unique(finding for finding in found if settings.reports(finding))
    return Report(reported, given, len(uses))


def check_text(name: str, data: bytes, settings: Settings) -> Report:
    """Returns the findings in the text of one file, which need not be on disk."""
    if not has_uses(data):
        return Report([], [name], 0)
    from pmapx._src.lint import worker

    reading = worker.read_text(name, data)
    found = [*reading.findings, *_of_unread(reading.unreadable.items())]
    return Report(_unique(filter(settings.reports, found)), [name], 1)


def _sift(given: Sequence[str], processes: int | None, advance: Progress) -> Sifted:
    """Looks at every file, in copies of this process where that pays."""
    own = [path for path in given if not is_part_of_jax(path)]
    count = processes or _count_that_pays(len(own) // FILES_WORTH_A_COPY)
    size = max(SMALLEST_PART, len(own) // PARTS)
    parts = [own[start : start + size] for start in range(0, len(own), size)]
    look = functools.partial(prefilter.sift, has_uses, prefilter.module_names(given))
    # Sending the files to another process costs more than it saves here.
    count = count if parallel.can_fork() else 1
    if count > 1:
        # Copies of this process have what it has imported.
        _import_rules()
    sifted = Sifted({}, {}, {})
    for part in parallel.each(look, parts, count, advance):
        sifted.add(part)
    return sifted


def _import_rules() -> None:
    """Imports what files with uses are read with; most of what a small check costs is this."""
    from pmapx._src.lint import rules, worker  # noqa: F401

    rules.all_rules()


def _of_unread(unread: Iterable[tuple[str, str]]) -> list[Finding]:
    from pmapx._src.lint.rules.uses.unread_file import UnreadFile

    return [UnreadFile.of_file(path, reason) for path, reason in unread]


def _read(
    given: Sequence[str], sifted: Sifted, processes: int | None, advance: Progress
) -> list[Finding]:
    """Reads the files with uses, and then those that use what these wrap."""
    with gc_paused.left_alone():
        _import_rules()
        from pmapx._src.lint import worker

        project = worker.project_of(given)
    found: list[Finding] = []
    new, known = sifted.uses, set[tuple[str, str]]()
    while new:
        # A file of a later round uses a wrapper, whatever names are in it.
        is_later = new is not sifted.uses
        reading = _read_shares(project, new, processes, advance, is_followed=is_later)
        found += reading.findings
        found += _of_unread(reading.unreadable.items())
        # A wrapper's users need not mention pmap or JAX at all.
        new = prefilter.users(reading.wrappers - known, sifted.importers)
        known |= reading.wrappers
        sifted.uses |= new
        for path in new:
            del sifted.importers[path]
    return found


def _read_shares(
    project: Project,
    uses: dict[str, Load],
    processes: int | None,
    advance: Progress,
    *,
    is_followed: bool,
) -> Reading:
    """Reads files in several processes where that pays.

    Each share is read on its own, in however many processes, so that the report is the same. One
    that has all files goes on from what was read in the project before.
    """
    from pmapx._src.lint import worker

    size = sum(load.weight for load in uses.values())
    worth = WORTH_A_COPY if parallel.can_fork() else WORTH_A_PROCESS
    count = processes or _count_that_pays(size // worth)
    shares = prefilter.shares(uses)
    # A copy of this process has the project; another has to be sent its files.
    is_sent = count > 1 and len(shares) > 1 and not parallel.can_fork()
    read = functools.partial(
        worker.read if len(shares) == 1 else worker.read_anew, project, is_followed
    )
    if is_sent:
        read = functools.partial(worker.read_apart, list(project.paths.values()), is_followed)
    found = worker.Reading([], {}, set())
    for part in parallel.each(read, shares, count, advance):
        found.add(part)
    return found


def _count_that_pays(copies: int) -> int:
    return min(parallel.processors(), 8, 1 + copies)


def _unique(found: Iterable[Finding]) -> list[Finding]:
    """Sorts, and keeps the surest of those that say the same of one place."""
    best: dict[object, Finding] = {}
    for finding in found:
        key = (finding.place, finding.code)
        if key not in best or finding.rank < best[key].rank:
            best[key] = finding
    return sorted(best.values(), key=lambda f: (f.place.path, f.place.line, f.place.column, f.code))
