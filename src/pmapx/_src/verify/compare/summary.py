"""The result of two runs: for each site, and for the runs themselves."""

import dataclasses
from collections.abc import Iterator, Sequence

from pmapx._src.verify.compare import match_processes as processes
from pmapx._src.verify.compare.compare_arrays import Grade, Tolerance
from pmapx._src.verify.compare.compare_calls import Side, judge
from pmapx._src.verify.compare.match_functions import match
from pmapx._src.verify.compare.result import (
    DIFFERENT,
    EQUAL,
    STATES,
    UNVERIFIED,
    VERIFIED,
    WITHIN,
    SiteResult,
    Verification,
    merge,
)
from pmapx._src.verify.record.reader import Call, Function, Records, Run, Signature
from pmapx._src.verify.uses import Use
from pmapx._src.watch.run_in_copy import last_line

NEVER = "the command never reached it"
NOT_CALLED = "it was created, but never called"
TRACED = (
    "called only inside a traced function that is not recorded, so its values are unknown: call "
    "it once outside"
)
GONE = "it is not called in the migrated code"
PLACED = "it returns its arguments, and the migrated code does not call it"
TOO_EARLY = "the migrated version ended before it was called"
NOTHING = "nothing was compared"
NEW = "it is called in the migrated code only"


def sum_up(
    before: Run,
    after: Run,
    uses: Sequence[Use],
    tolerance: Tolerance,
    command: tuple[str, ...] = (),
) -> Verification:
    reached: set[Use] = set()
    by_process: dict[int | None, list[SiteResult]] = {}
    for pair in processes.pairs(before, after):
        found = _Sites(pair.before, pair.after, uses, tolerance, has_ended=after.status == 0)
        by_process[pair.number] = found.called()
        reached |= found.reached
    if None in by_process:
        sites = by_process[None]
    else:
        numbered = {number: found for number, found in by_process.items() if number is not None}
        sites = merge(numbered, (NEVER, NOT_CALLED))
    detail = NEVER if by_process else NOTHING
    sites += [_unreached(use, detail) for use in uses if use not in reached]
    sites.sort(key=lambda site: (site.path, site.line, site.function))
    return Verification(
        tuple(sites),
        tuple(_differences(before, after)),
        tuple(_errors(before, after)),
        str(tolerance),
        command,
        next((run.output for run in (before, after) if run.status != 0), ""),
    )


def _errors(before: Run, after: Run) -> Iterator[str]:
    """Yields why nothing, or not everything, could be compared."""
    if failure := _failure(before, "original"):
        yield failure
    elif before.status:
        what = "on both versions" if after.status == before.status else "on the original version"
        yield f"the command fails {what}, {_status(before)}"
    elif not before.processes:
        yield "the command never imports JAX: pass the command that runs the program"
    yield from processes.problems(before, after)
    for name, run in (("original", before), ("migrated", after)):
        strangers = [path for process in run.processes for path in process.strangers]
        if strangers:
            yield (
                f"the {name} version imported {strangers[0]}, a file of the other version: make it "
                "import its own, for example with PYTHONPATH=. or PYTHONPATH=src"
            )


def _differences(before: Run, after: Run) -> Iterator[str]:
    """Yields what differs between the runs besides the sites."""
    if before.status is None or before.status:
        return
    if failure := _failure(after, "migrated", f"; before, it took {before.seconds:.0f} s"):
        yield failure
    elif after.status != before.status:
        yield f"the command fails on the migrated version, {_status(after)}"
    elif before.processes and not after.processes:
        yield "only the original version imports JAX"


def _failure(run: Run, version: str, compared: str = "") -> str:
    """Describes a run that did not end in time, or which of several processes failed first."""
    which = processes.failure(run)
    if run.status is None:
        rest = f"; {NOTHING}" if processes.count(run) > 1 else ""
        which = which or "the command did not end"
        return f"{which} on the {version} version within {run.seconds:.0f} s{compared}{rest}"
    return f"{which}, on the {version} version{last_line(run.output)}; {NOTHING}" if which else ""


def _status(run: Run) -> str:
    assert run.status is not None
    how = f"exit status {run.status}" if run.status > 0 else f"signal {-run.status}"
    return how + last_line(run.output)


def _unreached(use: Use, detail: str) -> SiteResult:
    name = use.function or use.kind
    return SiteResult(use.path, use.line, name, UNVERIFIED, detail=detail, cell=use.cell)


@dataclasses.dataclass
class _Sites:
    """The results of a pair of recorded processes."""

    before: Records
    after: Records
    uses: Sequence[Use]
    tolerance: Tolerance
    has_ended: bool
    reached: set[Use] = dataclasses.field(default_factory=set)

    def _pairs(self) -> list[tuple[Function | None, Function | None]]:
        sides = (self.before, self.after)
        called = [[f for f in side.functions.values() if f.calls] for side in sides]
        for side, functions in zip(sides, called, strict=True):
            for function in functions:
                function.signature = _signature(side.call(function, 0))
        pairs = match(*([f for f in side if not f.is_plain] for side in called))
        # What needs no shard_map may be a jitted function, as of replicated arguments alone, or a
        # lambda around it, unless it only placed its arguments.
        plain = [f for f in called[1] if f.is_plain]
        for is_lambda in (False, True):
            missing = [old for old, new in pairs if old is not None and new is None]
            if is_lambda:
                missing = [old for old in missing if not self._is_identity(old)]
            names = {"<lambda>"} if is_lambda else {function.name for function in missing}
            used = {new.number for _, new in pairs if new is not None}
            found = match(missing, [f for f in plain if f.name in names and f.number not in used])
            kept = [(old, new) for old, new in pairs if all(old is not each for each in missing)]
            pairs = [*kept, *((old, new) for old, new in found if old is not None)]
        return pairs

    def called(self) -> list[SiteResult]:
        """Returns the results of functions that were called, then of those that were not."""
        results = [(old, self._of_pair(old, new)) for old, new in self._pairs()]
        by_number = {old.number: result for old, result in results if old is not None}
        uncalled = [
            self._of_uncalled(function, by_number)
            for function in self.before.functions.values()
            if function.kind == "pmap" and not function.calls
        ]
        return [*(result for _, result in results), *uncalled]

    def _of_pair(self, old: Function | None, new: Function | None) -> SiteResult:
        if old is None:
            assert new is not None
            return SiteResult(new.file, new.line, new.name, DIFFERENT, detail=NEW, after=_at(new))
        site = self._site(old)
        if new is None and not self.has_ended:
            return dataclasses.replace(site, detail=TOO_EARLY)
        if new is None and self._is_identity(old):
            return dataclasses.replace(
                site, state=VERIFIED, agreement=EQUAL, calls=len(old.calls), notes=(PLACED,)
            )
        if new is None:
            return dataclasses.replace(site, state=DIFFERENT, detail=GONE, order=old.orders[0])
        found = judge(Side(self.before, old), Side(self.after, new), self.tolerance)
        if -1 in old.inside:
            found.note("it was also called inside a trace, where its values are unknown")
        is_different = found.grade == Grade.DIFFERENT
        return dataclasses.replace(
            site,
            state=DIFFERENT if is_different else VERIFIED,
            agreement="" if is_different else (EQUAL, WITHIN)[found.grade],
            detail=found.detail,
            calls=found.compared,
            after=_at(new),
            notes=tuple(found.notes),
            order=found.order,
        )

    def _is_identity(self, function: Function) -> bool:
        """Returns whether all calls returned their arguments, as one that only places them does."""
        calls = [self.before.call(function, number) for number in range(len(function.calls))]
        both = [
            [[leaf.get("digest") and (leaf["digest"], leaf["shape"]) for leaf in leaves]
             for leaves in (call.inputs, call.outputs)]
            for call in calls
        ]  # fmt: skip
        return all(taken == given and all(taken) for taken, given in both)

    def _of_uncalled(self, function: Function, by_number: dict[int, SiteResult]) -> SiteResult:
        """A mapped function that was only traced has the result of the functions around it."""
        site = self._site(function)
        around = [by_number[number] for number in sorted(function.inside) if number in by_number]
        if not around:
            reason = TRACED if function.inside else NOT_CALLED
            return dataclasses.replace(site, state=UNVERIFIED, detail=reason)
        worst = min(around, key=lambda result: STATES.index(result.state))
        where = f"inside {worst.function} ({worst.place})"
        return dataclasses.replace(
            worst,
            path=site.path,
            line=site.line,
            cell=site.cell,
            function=site.function,
            detail=f"{where}: {worst.detail}" if worst.detail else where,
        )

    def _site(self, function: Function) -> SiteResult:
        """Returns an empty result at the use of pmap that made a function."""
        own = [use for use in self.uses if use.covers(function.file, function.line)]
        if not own and function.kind == "pmap":
            # Made through a partial, or where pmap was passed to.
            passed = [use for use in self.uses if use.is_passed_on]
            own = [use for use in passed if use.path == function.file] or passed
            self.reached.update(own)
            own = own if len(own) == 1 else []
        self.reached.update(own)
        if not own:
            return SiteResult(function.file, function.line, function.name, UNVERIFIED)
        use = own[0]
        return SiteResult(use.path, use.line, function.name, UNVERIFIED, cell=use.cell)


def _signature(call: Call) -> Signature:
    """Returns the dtypes and shapes of a call's arrays."""
    leaves = [*call.inputs, *call.outputs]
    dtypes = tuple(str(leaf.get("dtype")) for leaf in leaves)
    return len(call.inputs), dtypes, tuple(str(leaf.get("shape")) for leaf in leaves)


def _at(function: Function) -> str:
    return f"{function.file}:{function.line}"
