"""Applying the fixes of findings to a file, until none is left."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.lint import rules
from pmapx._src.lint.finding import Finding, Fix
from pmapx._src.source import files, suppressions
from pmapx._src.source.discovery import Unreadable
from pmapx._src.source.rewriting.edits import Edit

if TYPE_CHECKING:
    from pmapx._src.lint.check import Report

# A fix may make room for another; more rounds than this would be fixes that undo each other.
_MOST_ROUNDS = 10
Wanted = Callable[[Finding], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class FixedFile:
    """A file before and after its fixes, with the findings that were fixed.

    ``waiting`` is how many overlapped with another, and wait for the next round.
    """

    path: str
    before: bytes
    after: bytes
    fixed: tuple[Finding, ...]
    waiting: int = 0


def findings(module: Module) -> Iterator[Finding]:
    """Yields what the rules find in a module that was read, except what comments suppress."""
    source = module.source
    for rule in rules.all_rules().values():
        for finding in rule().check(module):
            place = finding.place
            if not suppressions.is_suppressed(finding.code, place, source):
                yield dataclasses.replace(
                    finding,
                    line_text=source.line(place.line),
                    cell=source.cell_of(place.line),
                )


def fix_module(
    module: Module, data: bytes, wanted: Wanted = lambda finding: True, *, is_unsafe: bool = False
) -> FixedFile:
    """Returns a file with one round of fixes, as ``migrate`` applies them in its own pass.

    ``wanted`` chooses the findings. Fixes that overlap with an earlier one wait for another
    round, and the file still parses.
    """
    found = [
        finding
        for finding in findings(module)
        if finding.fix is not None
        and (finding.fix.is_safe or is_unsafe)
        and finding.place.path == module.path
        and wanted(finding)
    ]
    chosen = _without_overlaps(found)
    after = _applied(module, data, chosen)
    if after is None:
        # One of them breaks the file: the others are tried one after another.
        chosen, kept = [], chosen
        after = data
        for finding in kept:
            attempt = _applied(module, data, [*chosen, finding])
            if attempt is not None:
                after, chosen = attempt, [*chosen, finding]
    return FixedFile(module.path, data, after, tuple(chosen), len(found) - len(chosen))


def fix_reported(report: Report, wanted: Wanted, *, is_unsafe: bool) -> list[FixedFile]:
    """Returns the files of a report that fixes change; only what is wanted is fixed."""

    project = Project(report.paths)
    fixable = {
        finding.place.path
        for finding in report.findings
        if finding.fix is not None and (finding.fix.is_safe or is_unsafe)
    }
    fixed = []
    for path in sorted(fixable):
        data = files.read_bytes(path)
        if not isinstance(data, Unreadable):
            file = fix_file(project, path, data, wanted, is_unsafe=is_unsafe)
            if file.after != file.before:
                fixed.append(file)
    return fixed


def fix_text(name: str, data: bytes, wanted: Wanted, *, is_unsafe: bool) -> FixedFile:
    """Returns the text of one file with its fixes; the file need not be on disk."""
    return fix_file(Project([name]), name, data, wanted, is_unsafe=is_unsafe)


def fix_file(
    project: Project,
    path: str,
    data: bytes,
    wanted: Wanted = lambda finding: True,
    *,
    is_unsafe: bool = False,
) -> FixedFile:
    """Returns a file of a project with all its fixes; the other files are only read.

    >>> code = b"import jax\\ny = jax.tree_map(abs, x)\\n"
    >>> fix_file(Project(["a.py"]), "a.py", code).after
    b'import jax\\ny = jax.tree.map(abs, x)\\n'
    """
    after, fixed = data, list[Finding]()
    for _ in range(_MOST_ROUNDS):
        module = project.anew().module(path, data=after)
        if module is None:
            break
        step = fix_module(module, after, wanted, is_unsafe=is_unsafe)
        if step.after == after:
            break
        after = step.after
        fixed += step.fixed
        if not step.waiting:
            break
    return FixedFile(path, data, after, tuple(fixed))


def _without_overlaps(found: list[Finding]) -> list[Finding]:
    chosen: list[Finding] = []
    taken: list[Edit] = []
    for finding in sorted(found, key=lambda f: (f.place.line, f.place.column, f.code)):
        new = [edit for edit in finding.fix.edits if edit not in taken] if finding.fix else []
        if not any(_overlaps(edit, taken) for edit in new):
            chosen.append(finding)
            for edit in new:
                bisect.insort(taken, edit)
    return chosen


def _overlaps(edit: Edit, others: list[Edit]) -> bool:
    """Returns whether an edit touches text of another, given those in order.

    Insertions at one point do not.
    """
    at = bisect.bisect(others, edit)
    before, after = others[max(at - 1, 0) : at], others[at : at + 1]
    return any((edit.line, edit.column) < (e.end_line, e.end_column) for e in before) or any(
        (e.line, e.column) < (edit.end_line, edit.end_column) for e in after
    )


def _applied(module: Module, data: bytes, chosen: list[Finding]) -> bytes | None:
    """Returns the file with some fixes; None if they do not go together or break it."""
    fixes: set[Fix] = {finding.fix for finding in chosen if finding.fix is not None}
    if not fixes:
        return data
    # A check that fixes nothing need not import what writes notebooks.
    from pmapx._src.source.rewriting import notebook_edits

    try:
        edits = [edit for fix in fixes for edit in fix.edits]
        after = notebook_edits.applied(module.source, data, edits)
    except (ValueError, UnicodeEncodeError):
        return None
    parsed = files.parse(module.path, after)
    is_sound = not isinstance(parsed, Unreadable) and parsed.problems == module.source.problems
    return after if is_sound else None
