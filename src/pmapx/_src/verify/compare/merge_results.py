"""The results of a site in several processes, merged into one."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from pmapx._src.verify.compare.result import (
    DIFFERENT,
    EQUAL,
    UNVERIFIED,
    VERIFIED,
    WITHIN,
    SiteResult,
)


def merge(by_process: dict[int, list[SiteResult]], not_reached: Sequence[str]) -> list[SiteResult]:
    """Returns one result a site: that of the worst process, whose index is in the detail.

    Args:
      by_process: the results of each process.
      not_reached: the details of sites that a process did not reach, and need not.

    Examples:
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
