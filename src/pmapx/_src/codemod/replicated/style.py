"""``--style replicated`` from end to end: from modules and evidence to the texts of files."""

from __future__ import annotations

import ast
import collections
import dataclasses
import itertools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Place
from pmapx._src.codemod.evidence.evidence import Evidence
from pmapx._src.codemod.replicated import decisions, editing, restored
from pmapx._src.codemod.replicated.decisions import NOT_SETTLED, Merge, Merging, Stay
from pmapx._src.codemod.replicated.groups import PLACED, SINGLE, Position
from pmapx._src.codemod.replicated.maps import Map, Maps, SiteKey
from pmapx._src.codemod.replicated.stacked_flow import Flow
from pmapx._src.source import files
from pmapx._src.source.command_error import CommandError
from pmapx._src.source.discovery import Unreadable
from pmapx._src.source.rewriting.edits import Edit, applied

__all__ = ["Gain", "NamingError", "Restyled", "Stay", "restyle"]

# A value is followed through calls and bindings in one go, however many these are.
DEEPEST = 8000
# Fields of a state that differ may show that others do.
MOST_READINGS = 4
# Fields that keep their axis: a state with more of them is better left stacked.
MOST_FIELDS = 2
TAKEN = f"the name {editing.HELPER} that its rewrite needs means something else in this file"


class NamingError(CommandError, ValueError):
    """A name that leads to no pmapped function, argument or result."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gain:
    """A pmap with arguments or results that are replicated now; ``site`` has its ``jax.pmap``."""

    place: Place
    what: str
    site: Place


@dataclasses.dataclass(frozen=True, slots=True)
class Restyled:
    """The changes to each file, what is replicated after them, and what stays stacked.

    ``replicated`` has the arguments of each map that are, by ``Map.key``, and ``SINGLE`` where some
    of its results are.
    With ``merge``, ``merged_arguments`` and ``merged_results`` are the positions of each map
    that take or give ``(n * b, ...)`` in place of ``(n, b, ...)`` after the edits; their spec is
    ``P(axis)``, and the mapped function stays as it is. Keys are ``Map.key``: where the map is made
    before the edits (path, line, column); a result that is no tuple has the index ``SINGLE``.
    ``prefetched`` are iterators, by their place before the edits, whose batches Flax put on the
    devices ahead of time; the edits leave the iterator alone. ``unmerged`` are batches that stay.
    """

    edits: dict[str, list[Edit]]
    gains: tuple[Gain, ...] = ()
    stays: tuple[Stay, ...] = ()
    replicated: Mapping[SiteKey, set[int]] = dataclasses.field(default_factory=dict)
    merged_arguments: Mapping[SiteKey, set[int]] = dataclasses.field(default_factory=dict)
    merged_results: Mapping[SiteKey, set[int]] = dataclasses.field(default_factory=dict)
    prefetched: tuple[Place, ...] = ()
    unmerged: tuple[Stay, ...] = ()


def restyle(
    modules: Sequence[Module],
    evidence: Evidence,
    named: Sequence[str] = (),
    left: Mapping[Place, str] | None = None,
    *,
    merge: Merge | None = None,
    mergeable: Collection[Place] | None = None,
    wrapped: Collection[Place] = (),
    splittable: Collection[Place] = (),
    has_helper_function: bool = True,
    in_processes: Callable[[Module], bool] = lambda module: False,
) -> Restyled:
    """Returns what becomes of the state of a program, file by file.

    Args:
      modules: all modules that were read.
      evidence: what a run of the program showed.
      named: arguments that the user calls replicated, as ``function:argument``.
      left: the uses of pmap that will not be rewritten, and why.
      merge: ``merging.merge``, if batches that are split over the devices are merged as well. The
        program is right again only after its maps take them so.
      mergeable: the uses of pmap that can take them so, by their places; None for all.
      wrapped: those of them whose function is called in a lambda that converts its arguments.
      splittable: the uses of pmap whose specs can be by field, by their places.
      has_helper_function: whether a function of the file puts state on all devices.
      in_processes: whether the program of a module is one of several processes.

    Raises:
      NamingError: if a name leads to nothing.
    """

    def restyled(evidence: Evidence) -> Restyled:
        maps = Maps(modules, evidence)
        maps.in_processes = in_processes
        for each in maps:
            each.is_splittable = each.wrapper is None and each.site in splittable
        if mergeable is not None:
            for each in maps:
                each.is_mergeable = each.wrapper is None and each.site in mergeable
                each.is_wrapped = each.site in wrapped
        return _restyle(modules, maps, named, left or {}, merge, has_helper_function)

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEEPEST))
    try:
        done = restyled(evidence)
        if evidence.has_run and done.stays:
            # The source alone may show more: a state but for some of its fields.
            alone = restyled(Evidence())
            if _size(alone) > _size(done):
                gained = {gain.site for gain in alone.gains}
                kept = tuple(each for each in done.stays if each.site not in gained)
                return dataclasses.replace(alone, stays=kept)
        return done
    except RecursionError:
        maps = Maps(modules, evidence)
        stays = [Stay(each.made_at, each.name, NOT_SETTLED, each.site) for each in maps]
        return Restyled({}, (), tuple(_in_order(stays)))
    finally:
        sys.setrecursionlimit(before)


def _restyle(
    modules: Sequence[Module],
    maps: Maps,
    named: Sequence[str],
    left: Mapping[Place, str],
    merge: Merge | None,
    has_helper_function: bool,
) -> Restyled:
    for each in maps:
        for place, reason in left.items():
            if place.is_inside(each.made_at) or place.is_inside(each.site):
                each.obstacle = each.obstacle or reason
        if not each.obstacle and _is_taken(each.module):
            each.obstacle = TAKEN
    positions = _named(maps, named)
    flow, decided = _decided(modules, maps, positions)
    decided.changes += [(change, False) for change in restored.changes(flow)]
    merged = Merging()
    if merge is not None:
        merged = merge(modules, maps, decided.arguments, decided.results)
    edits = editing.edits(maps, decided, merged.changes, has_helper_function=has_helper_function)
    for module in modules:
        reason = _broken(module, edits.get(os.path.normpath(module.path), []))
        if reason:
            stays = [Stay(each.made_at, each.name, reason, each.site) for each in maps]
            return Restyled({}, (), tuple(_in_order(stays)))
    return Restyled(
        edits,
        tuple(_gains(maps, decided)),
        tuple(_in_order(decided.stays)),
        {
            key: {*decided.arguments.get(key, ()), *([SINGLE] if key in decided.results else [])}
            for key in {*decided.arguments, *decided.results}
        },
        merged.arguments,
        merged.results,
        tuple(merged.prefetched),
        tuple(_in_order(merged.stays)),
    )


def _decided(
    modules: Sequence[Module], maps: Maps, positions: frozenset[Position]
) -> tuple[Flow, decisions.Decisions]:
    """Reads the program; again where callbacks take state, or some fields keep their axis."""
    flow = Flow(modules, maps)
    flow.follow()
    decided = decisions.decide(flow, positions)
    last = flow
    if flow.passed_functions:
        # A callback that other code may call, too, takes a stacked copy.
        last = Flow(modules, maps)
        last.cut = frozenset(itertools.chain(*map(_parameters, flow.passed_functions)))
        last.follow()
        found = decisions.decide(last, positions)
        if _count(found) > _count(decided):
            flow, decided = last, found
    names: frozenset[str] = frozenset()
    first = wanted = _of_few_fields(decided.wanted)
    is_open = bool(wanted) and not maps.evidence.has_run
    for _ in range(MOST_READINGS if is_open else 0):
        before, cut = names, last.cut
        if names:
            # Of what a map takes so, its function stays as it is; else all that kept others.
            cut |= last.without_specs - cut or last.refused
        names |= _most_common(wanted)
        if names == before and cut == last.cut:
            # States of the program may differ in other fields than most of them.
            wanted, cut = {**first, **wanted}, flow.cut
            names |= _most_common({at: w for at, w in wanted.items() if not w[1] <= names})
        if names == before and cut == last.cut:
            break
        chosen = {at: each for at, each in wanted.items() if each[1] <= names}
        last = Flow(modules, maps, names)
        last.cut = cut
        last.follow()
        found = decisions.decide(last, positions, chosen)
        wanted = _of_few_fields(found.wanted)
        if _count(found) > _count(decided):
            flow, decided = last, found
    if flow is not last:
        # The maps keep what the last reading showed of their calls.
        flow.follow()
    return flow, decided


def _size(done: Restyled) -> int:
    return sum(map(len, done.replicated.values()))


def _parameters(function: ast.AST) -> list[ast.arg]:
    """Returns the parameters of a function that can take a copy: it does not ask for shards."""
    parts = list(ast.walk(function))
    attributes = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    is_plain = not attributes & PLACED
    return [part for part in parts if isinstance(part, ast.arg) and is_plain]


def _most_common(wanted: decisions.Wanted) -> frozenset[str]:
    found = collections.Counter(names for _, names in wanted.values()).most_common(1)
    return found[0][0] if found else frozenset()


def _of_few_fields(wanted: decisions.Wanted) -> decisions.Wanted:
    return {at: each for at, each in wanted.items() if len(each[1]) <= MOST_FIELDS}


def _count(decided: decisions.Decisions) -> int:
    tables = (*decided.arguments.values(), *decided.results.values())
    return sum(len(table) for table in tables)


def _broken(module: Module, edits: Sequence[Edit]) -> str:
    """Returns why a file cannot be changed so, if it cannot."""
    if not edits:
        return ""
    try:
        after = applied(module.source.text.encode(), edits)
    except ValueError as error:
        return f"{module.path} cannot be rewritten: {error}"
    # The cells of a notebook are one text here.
    broken = files.parse(module.path.removesuffix(".ipynb"), after)
    return broken.reason if isinstance(broken, Unreadable) else ""


def _gains(maps: Maps, decided: decisions.Decisions) -> Collection[Gain]:
    found = []
    for key in sorted({*decided.arguments, *decided.results}):
        each = maps.by_key(key)
        words = [
            decisions.argument_name(each, Position.of(each.made_at, index, is_output=is_output))
            for table, is_output in ((decided.arguments, False), (decided.results, True))
            for index in sorted(table.get(key, ()))
        ]
        found.append(Gain(each.made_at, f"{each.name}: {', '.join(words)}", each.site))
    return found


def _in_order(stays: Sequence[Stay]) -> list[Stay]:
    return sorted(stays, key=lambda stay: (stay.place.path, stay.place.line, stay.place.column))


def _is_taken(module: Module) -> bool:
    return module.env.find(editing.HELPER) is not None and not editing.has_helper(module)


def _named(maps: Maps, named: Iterable[str]) -> frozenset[Position]:
    """Returns the arguments and results that names stand for.

    ``train_step:state`` is the argument, ``train_step:return[1]`` the second result.

    Raises:
      NamingError: if there is no such function or argument; the message lists those there are.
    """
    known: dict[str, list[Map]] = {}
    for each in maps:
        known.setdefault(each.name, []).append(each)
    found: set[Position] = set()
    for text in named:
        function, colon, argument = text.partition(":")
        if not colon or not function or not argument:
            raise NamingError(f"--replicated takes FUNCTION:ARGUMENT, not {text!r}")
        if function in maps.through_wrappers:
            # It stays as it is, and is reported with its reason.
            continue
        if function not in known:
            names = ", ".join(sorted(known)) or "none"
            raise NamingError(f"no pmapped function {function!r}; there are: {names}")
        for each in known[function]:
            found.add(_position(each, argument))
    return frozenset(found)


def _position(each: Map, argument: str) -> Position:
    result = re.fullmatch(r"return(?:\[(\d+)\])?", argument)
    arity = each.arity
    count = 0 if arity is None or arity < 0 else arity
    if result is not None:
        index = SINGLE if result[1] is None else int(result[1])
        if (index == SINGLE) == (count == 0) and index < count:
            return Position.of(each.made_at, index, is_output=True)
    names = each.parameters
    if argument in names:
        return Position.of(each.made_at, names.index(argument), is_output=False)
    results = [f"return[{index}]" for index in range(count)] or ["return"]
    known = ", ".join([*names, *results])
    raise NamingError(f"{each.name} has no argument {argument!r}; it has: {known}")
