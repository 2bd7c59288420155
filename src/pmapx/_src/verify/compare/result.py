"""The result of a verification, for each site, in one process or several, and in total."""

import collections
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

VERIFIED = "verified"
DIFFERENT = "different"
UNVERIFIED = "unverified"
STATES = (DIFFERENT, UNVERIFIED, VERIFIED)

EQUAL = "equal to the bit"
WITHIN = "equal within tolerance"


@dataclasses.dataclass(frozen=True, slots=True)
class SiteResult:
    """The result of one site, for one function that is mapped there.

    Attributes:
      path: the file, relative to the folder of the original version.
      line: the line of the site in it.
      function: the name of the mapped function.
      state: ``verified``, ``different`` or ``unverified``.
      agreement: how its calls agree, if they do.
      detail: what differs and by how much, or why it is not verified.
      calls: how many calls were compared.
      after: where it is made in the migrated code, as ``file:line``.
      notes: further details, such as shapes that differ though the values do not.
      order: the position of its first difference among all recorded calls.
      process: the process that ``detail`` describes, if there are several.
      cell: in a notebook, the cell and the line in it; ``line`` counts those of all cells.

    Examples:
      >>> SiteResult("train.py", 12, "step", VERIFIED, EQUAL, calls=3).state
      'verified'
    """

    path: str
    line: int
    function: str
    state: str
    agreement: str = ""
    detail: str = ""
    calls: int = 0
    after: str = ""
    notes: tuple[str, ...] = ()
    order: int = 0
    process: int | None = None
    cell: tuple[int, int] | None = None

    @property
    def place(self) -> str:
        """The file and the line, or the cell and its line."""
        where = f"cell {self.cell[0]}:{self.cell[1]}" if self.cell is not None else self.line
        return f"{self.path}:{where}"


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """The results of all sites.

    Attributes:
      sites: one result a site and function, in the order of the files.
      differences: what differs between the two runs besides the sites, such as the exit status.
      errors: why nothing, or not everything, could be compared.
      tolerance: the tolerance as text.
      command: the command that was run.
      output: the end of the command's output, if it failed.
      notes: notes on the runs.

    Examples:
      >>> site = SiteResult("train.py", 12, "step", DIFFERENT, detail="call 0: about 8 times")
      >>> found = Verification((site,))
      >>> found.exit_code(), found.at("./train.py", 12).detail
      (1, 'call 0: about 8 times')
    """

    sites: tuple[SiteResult, ...]
    differences: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    tolerance: str = ""
    command: tuple[str, ...] = ()
    output: str = ""
    notes: tuple[str, ...] = ()

    @property
    def has_differences(self) -> bool:
        return bool(self.differences) or any(site.state == DIFFERENT for site in self.sites)

    @property
    def first(self) -> SiteResult | None:
        """The site that differed first while the program ran."""
        different = [site for site in self.sites if site.state == DIFFERENT]
        return min(different, key=lambda site: site.order, default=None)

    def at(self, path: str, line: int) -> SiteResult | None:
        """Returns the worst result of the functions that are mapped at a line."""
        path = os.path.normpath(path)
        found = [s for s in self.sites if os.path.normpath(s.path) == path and s.line == line]
        return min(found, key=lambda site: STATES.index(site.state), default=None)

    def exit_code(self, *, is_strict: bool = False) -> int:
        """Returns 0 if the verification succeeded, 1 if not, 2 on errors.

        It fails if something is different or no site is verified; with ``is_strict``, if any is
        unverified.
        """
        counts = collections.Counter(site.state for site in self.sites)
        if self.has_differences:
            return 1
        if self.errors:
            return 2
        return 1 if not counts[VERIFIED] or (is_strict and counts[UNVERIFIED]) else 0

    def as_json(self) -> dict[str, Any]:
        counts = collections.Counter(site.state for site in self.sites)
        return {
            "version": 1,
            "command": list(self.command),
            "tolerance": self.tolerance,
            "summary": {state: counts[state] for state in (VERIFIED, DIFFERENT, UNVERIFIED)},
            "errors": list(self.errors),
            "output": self.output,
            "differences": list(self.differences),
            "notes": list(self.notes),
            "first": dataclasses.asdict(self.first) if self.first is not None else None,
            "sites": [dataclasses.asdict(site) for site in self.sites],
        }


def merge(by_process: dict[int, list[SiteResult]], not_reached: Sequence[str]) -> list[SiteResult]:
    """Returns one result a site: that of the worst process, whose index is in the detail.

    ``not_reached`` are the details of sites that a process did not reach, and need not.

    >>> good = SiteResult("train.py", 12, "step", VERIFIED, EQUAL, calls=3)
    >>> bad = SiteResult("train.py", 12, "step", DIFFERENT, detail="call 1: the output: by 2")
    >>> (site,) = merge({0: [good], 1: [bad]}, [])
    >>> site.state, site.detail, site.process
    ('different', 'process 1: call 1: the output: by 2', 1)
    """
    grouped: dict[tuple[str, int, str, int], list[SiteResult]] = collections.defaultdict(list)
    for process, results in by_process.items():
        seen: collections.Counter[tuple[str, int, str]] = collections.Counter()
        for result in results:
            key = (result.path, result.line, result.function)
            grouped[*key, seen[key]].append(dataclasses.replace(result, process=process))
            seen[key] += 1
    return [_merged(results, not_reached, len(by_process)) for results in grouped.values()]


def _merged(results: list[SiteResult], not_reached: Sequence[str], processes: int) -> SiteResult:
    calls = sum(result.calls for result in results)
    for state in (DIFFERENT, UNVERIFIED, VERIFIED):
        found = [result for result in results if result.state == state]
        if state == UNVERIFIED:
            found = [result for result in found if result.detail not in not_reached]
        if found:
            break
    else:
        return dataclasses.replace(results[0], process=None)
    if state == DIFFERENT:
        worst = min(found, key=lambda result: result.order)
    else:
        worst = max(found, key=lambda result: (EQUAL, WITHIN, "").index(result.agreement))
    detail = f"process {worst.process}: {worst.detail}" if worst.detail else ""
    notes = list(dict.fromkeys(note for result in results for note in result.notes))
    reached = [result for result in results if result.calls]
    if state == VERIFIED and len(reached) < processes:
        numbers = ", ".join(str(result.process) for result in reached)
        notes.append(f"called in process {numbers} of {processes} only")
    return dataclasses.replace(
        worst,
        detail=detail,
        calls=calls,
        notes=tuple(notes),
        process=worst.process if worst.detail else None,
    )
