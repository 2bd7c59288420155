"""Pairs the processes of two runs, and explains why they cannot be compared.

A program has several processes if ``jax.distributed`` connects them or ``pmapx run -n`` started
them. They are paired by their indices. If a process failed, none is compared.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence

from pmapx._src.verify.record.reader import Records, Run


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A process of both versions; ``number`` is None if the program has one process only."""

    number: int | None
    before: Records
    after: Records


def count(run: Run) -> int:
    """Returns the number of processes of the program."""
    return max([1, *(process.processes for process in run.processes)])


def pairs(before: Run, after: Run) -> list[Pair]:
    """Returns the processes to compare: all of them or none."""
    if any(True for _ in problems(before, after)):
        return []
    if count(before) == 1:
        old, new = _caller(before), _caller(after)
        return [Pair(None, old, new)] if old is not None and new is not None else []
    if before.status != 0 or after.status != 0:
        return []
    old_ones, new_ones = _by_number(before), _by_number(after)
    return [Pair(number, old_ones[number], new_ones[number]) for number in sorted(old_ones)]


def problems(before: Run, after: Run) -> Iterator[str]:
    """Yields why processes cannot be paired."""
    for name, run in (("original", before), ("migrated", after)):
        size = count(run)
        callers = collections.Counter(p.process for p in run.processes if p.has_calls)
        if size == 1 and callers.total() > 1:
            yield (
                f"{callers.total()} separate processes call mapped functions on the {name} "
                "version: start them with pmapx run -n"
            )
        twice = [number for number, times in callers.items() if times > 1]
        if size > 1 and twice:
            yield (
                f"{callers[twice[0]]} processes call mapped functions as process {twice[0]} of "
                f"{size} on the {name} version: pass a command that starts each once"
            )
        missing = sorted(set(range(size)) - _by_number(run).keys())
        if size > 1 and missing and run.status == 0:
            yield f"{_named(missing, size)} left no record on the {name} version"
    if count(before) != count(after) and before.processes and after.processes:
        yield f"the program has {count(before)} processes before and {count(after)} after"


def failure(run: Run) -> str:
    """Describes which of several processes failed or did not end; empty for one process."""
    size = count(run)
    if size == 1 or run.status == 0:
        return ""
    if run.status is None:
        ended = [number for number, each in _by_number(run).items() if each.has_ended]
        waited = sorted(set(range(size)) - set(ended))
        return f"{_named(waited, size)} did not end" if waited else "the command did not end"
    if run.failed_first is None:
        return ""
    number, how = run.failed_first
    return f"process {number} of {size} failed first, with {how}"


def _caller(run: Run) -> Records | None:
    """Returns the process that called mapped functions, or the first that imported JAX."""
    called = [process for process in run.processes if process.has_calls]
    return next(iter(called or run.processes), None)


def _by_number(run: Run) -> dict[int, Records]:
    """Returns the processes by index; a subprocess counts only if it calls mapped functions."""
    size = count(run)
    own = [process for process in run.processes if process.processes == size]
    found: dict[int, Records] = {}
    for process in sorted(own, key=lambda process: not process.has_calls):
        found.setdefault(process.process, process)
    return found


def _named(numbers: Sequence[int], size: int) -> str:
    if len(numbers) == 1:
        return f"process {numbers[0]} of {size}"
    listed = ", ".join(map(str, numbers[:-1]))
    return f"processes {listed} and {numbers[-1]} of {size}"
