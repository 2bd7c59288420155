"""Which values lose their axis of devices: those whose every place agrees, with proof.

The proof is an induction. What ``replicate`` makes is equal on all devices. A result of a pmap is,
if, by the analysis of its program, or of its source where it was not run, it differs with no
arguments but equal ones. So the largest set of groups is looked for in which each result rests on
arguments of the set.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import is_decorator
from pmapx._src.analysis.values import Place
from pmapx._src.codemod.decide.fields import Fields
from pmapx._src.codemod.replicated.groups import SINGLE, Change, Element, Position, boundaries
from pmapx._src.codemod.replicated.maps import Map, Maps, SiteKey
from pmapx._src.codemod.replicated.stacked_flow import Flow
from pmapx._src.codemod.replicated.unseen_callers import passed_on
from pmapx._src.codemod.varying.proof import Argument, Results, SourceProof
from pmapx._src.codemod.varying.values import Cause, Value

BY_FIELD = "{} of it would differ between devices, and its specs are not known where it is mapped"
RUN = "; a run may show more: add -- COMMAND, or --replicated {}"
NOT_NAMED = "only a part of what it returns is named: add -- COMMAND, or --replicated {}:return"
NOT_REACHED = "the command never called it"
NOT_SETTLED = "its values could not be followed to the end"
# Uses that get a stacked copy: a program with more of them is better left stacked.
MOST_BOUNDARIES = 4
COUNTS = "it is called with different numbers of arguments"
TOGETHER = "{}, which belongs to it, stays stacked"


@dataclasses.dataclass(frozen=True, slots=True)
class Stay:
    """Something that keeps its device axis, where, and why; ``site`` has its ``jax.pmap``."""

    place: Place
    what: str
    reason: str
    site: Place


@dataclasses.dataclass(slots=True)
class Decisions:
    arguments: dict[SiteKey, set[int]] = dataclasses.field(default_factory=dict)
    results: dict[SiteKey, set[int]] = dataclasses.field(default_factory=dict)
    changes: list[tuple[Change, bool]] = dataclasses.field(default_factory=list)
    stays: list[Stay] = dataclasses.field(default_factory=list)
    # States of which some fields stay stacked; and results that would be such, in another reading.
    fields: dict[Position, Fields] = dataclasses.field(default_factory=dict)
    # Where the specs of a state are made for a map: below its assignment, or above the map.
    assigned: dict[SiteKey, ast.stmt] = dataclasses.field(default_factory=dict)
    wanted: Wanted = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class Merging:
    """Arguments and results that are merged, by the keys of maps; the changes to their makers.

    ``prefetched`` are the iterators whose batches were put on the devices ahead of time.
    """

    arguments: dict[SiteKey, set[int]] = dataclasses.field(default_factory=dict)
    results: dict[SiteKey, set[int]] = dataclasses.field(default_factory=dict)
    changes: list[Change] = dataclasses.field(default_factory=list)
    prefetched: list[Place] = dataclasses.field(default_factory=list)
    stays: list[Stay] = dataclasses.field(default_factory=list)


# Of results: the method that replaces fields, and the fields that differ between devices.
Wanted = dict[Position, tuple[str, frozenset[str]]]
Positions = Mapping[SiteKey, Collection[int]]
# Returns what is merged, of a program whose replicated arguments and results are known.
Merge = Callable[[Sequence[Module], Maps, Positions, Positions], Merging]


def decide(flow: Flow, named: Set[Position], wanted: Wanted | None = None) -> Decisions:
    """Returns the changes of all groups that have a proof, or that the user named.

    ``wanted`` are results with fields that differ, as a first reading found them.
    """
    judge = _Judge(flow, named, wanted or {})
    groups = [group for group in flow.graph.groups() if any(each.position for each in group)]
    open_groups, refused = [], []
    for group in groups:
        reason = judge.first_reason(group) or judge.not_by_field(group)
        if reason and not flow.stacked:
            # Its fields may go other ways, if some of them differ.
            judge.look_for_fields(group)
        refused.append((group, reason)) if reason else open_groups.append(group)
    while True:
        converted = {
            each.position for group in open_groups for each in group if each.position is not None
        }
        kept = []
        for group in open_groups:
            found = judge.proof_fails(group, converted) or judge.left_behind(group, refused)
            refused.append((group, found)) if found else kept.append(group)
        if len(kept) == len(open_groups):
            break
        open_groups = kept
    flow.refused = frozenset(
        each.key[0]
        for group, _ in refused
        for each in group
        if each.is_parameter and (each.changes or each.reasons or each.boundaries)
        and isinstance(each.key, tuple) and isinstance(each.key[0], ast.arg)
    )  # fmt: skip
    flow.without_specs = flow.parameters_of(judge.without_specs)
    decisions = Decisions(fields=judge.fields, assigned=judge.assigned, wanted=judge.wanted)
    for group in open_groups:
        _convert(flow, group, decisions)
    decisions.stays = list(_stays(flow, judge, refused, decisions))
    return decisions


Reason = tuple[Place, str]


class _Judge:
    def __init__(self, flow: Flow, named: Set[Position], wanted: Wanted) -> None:
        self.flow = flow
        self.wanted = dict(wanted)
        self.fields: dict[Position, Fields] = {}
        self.assigned: dict[SiteKey, ast.stmt] = {}
        # Maps that take a state with fields that differ where nothing else is seen of it.
        self.without_specs: set[SiteKey] = set()
        self.named = named
        self.passed_on = passed_on(flow)
        self._proof = SourceProof(flow.modules)

    def first_reason(self, group: list[Element]) -> Reason | None:
        """Returns why a group stays, from where its values go."""
        if not self.flow.is_settled:
            return self._site(group).made_at, NOT_SETTLED
        found = [(place, why) for each in group for place, why in each.reasons.items()]
        if not self._may_stack_again(group):
            found += [(place, why) for _, place, why in boundaries(group).values()]
        found += [self.passed_on[each] for each in group if each in self.passed_on]
        found.sort(key=lambda item: (item[0].path, item[0].line, item[0].column))
        return found[0] if found else None

    def look_for_fields(self, group: list[Element]) -> None:
        """Notes the fields of states that would differ, whatever else stops them."""
        given = frozenset(name for each in group for name in each.fields)
        methods = sorted({method for each in group for method in each.methods})
        positions = {each.position for each in group if each.position is not None}
        taken = {position.site for position in positions if not position.is_output}
        for position in positions:
            each = self.flow.maps.by_key(position.site)
            if position.is_output and position.site in taken and each.record is None:
                self._unproven_by_source(each, position, positions, position)
                if given and methods:
                    _, found = self.wanted.get(position, ("", given))
                    self.wanted[position] = (methods[0], found | given)

    def not_by_field(self, group: list[Element]) -> Reason | None:
        """Returns why a state with fields that differ stays; notes the fields of one that may."""
        found = [self.wanted[each.position] for each in group
                 if each.position in self.wanted and not each.is_part]  # fmt: skip
        # A function that takes states of several maps reads a field of all of them alike.
        read = {name for each in group if not each.is_part for name in each.fields}
        names = tuple(sorted({*read, *(name for _, several in found for name in several)}))
        if not names:
            return None
        states = [each for each in group if not each.is_part]
        reasons = [reason for each in states for reason in each.unsplit.items()]
        reasons += [
            (change.module.place(change.node), "not all of its fields lose their axis")
            for each in states
            for change in (*each.changes.values(), *(c for c, _, _ in each.boundaries.values()))
            if not change.is_part
            and (change.kind not in ("call", "place", "stack") or not is_simple(change))
        ]
        methods = {method for method, _ in found}
        methods |= {method for each in states for method in each.methods} if not found else set()
        for position in (each.position for each in states if each.position is not None):
            site = self.flow.maps.by_key(position.site)
            method = next(iter(methods), "replace")
            assigned, state = self.flow.state_before(site, group) or (None, "")
            if assigned is not None:
                fields = Fields(names, method, state)
            else:
                fields = Fields(names, method, _argument_of(site, states), is_argument=True)
            is_free = site.module.env.find(fields.specs) is None and bool(fields.state)
            is_known = isinstance(site.axis, str) and site.is_splittable and len(methods) == 1
            if not is_free or not is_known:
                self.without_specs.add(site.key)
                reasons.append((site.made_at, BY_FIELD.format(", ".join(names))))
                continue
            self.fields[position] = fields
            if assigned is not None:
                self.assigned[site.key] = assigned
        return reasons[0] if reasons else None

    def _may_stack_again(self, group: list[Element]) -> bool:
        """Tells whether uses that are not followed get a stacked copy, of state and of no more."""
        positions = [each.position for each in group if each.position is not None]
        taken, given = (
            {p.site for p in positions if p.is_output is kind} for kind in (False, True)
        )
        is_state = any(each.is_made for each in group) or bool(taken & given)
        calls = [self.flow.maps.by_key(site).node for site in taken | given]
        is_on_all = all(
            isinstance(call, ast.Call)
            and not any(keyword.arg in ("devices", "axis_size") for keyword in call.keywords)
            for call in calls
        )
        changes = (change for each in group for change in each.changes.values())
        # On some of the devices, how many there are is not seen where it is stacked again.
        is_on_all &= all(isinstance(c.devices, (ast.Call, type(None))) for c in changes)
        return is_state and is_on_all and len(boundaries(group)) <= MOST_BOUNDARIES

    def _site(self, group: list[Element]) -> Map:
        position = next(each.position for each in group if each.position is not None)
        return self.flow.maps.by_key(position.site)

    def proof_fails(self, group: list[Element], converted: Set[Position]) -> Reason | None:
        """Returns why a group stays, from what its pmaps do with it."""
        positions = [each.position for each in group if each.position is not None]
        # A result that differs tells more than the argument that it becomes.
        positions.sort(key=lambda position: (not position.is_output, position))
        is_named = any(position in self.named for position in positions)
        for position in positions:
            each = self.flow.maps.by_key(position.site)
            asked = next((p for p in positions if p.site == each.key and not p.is_output), position)
            reason = self._obstacle(each) or self._unproven(
                each, position, converted, is_named, asked
            )
            if reason:
                return each.made_at, reason
        return None

    def left_behind(
        self, group: list[Element], refused: Sequence[tuple[list[Element], Reason]]
    ) -> Reason | None:
        """Returns why state that only a run shows to be equal stays: other state of its map does.

        State that differs between devices holds nothing back.
        """
        if not any(change.kind == "unstack" for change, _, _ in boundaries(group).values()):
            return None
        sites = {each.position.site for each in group if each.position is not None}
        for other, (place, _) in refused:
            positions = {each.position for each in other if each.position is not None}
            given = {position.site for position in positions if position.is_output}
            for position in positions:
                site = self.flow.maps.by_key(position.site)
                unequal = (
                    {site.index_of(name) for name in site.record.unequal} if site.record else ()
                )
                is_state = not position.is_output and position.site in given & sites
                if is_state and position.index not in unequal:
                    return place, TOGETHER.format(argument_name(site, position))
        return None

    def _obstacle(self, each: Map) -> str:
        if each.obstacle:
            return each.obstacle
        if each.reasons:
            return next(iter(each.reasons.values()))
        if len(each.counts) > 1 or -1 in each.counts:
            return COUNTS
        return ""

    def _unproven(
        self,
        each: Map,
        position: Position,
        converted: Set[Position],
        is_named: bool,
        asked: Position,
    ) -> str:
        record = each.record
        if record is None or record.problem:
            element = self.flow.graph.element(position)
            if is_named and position.index == SINGLE and element.is_taken_apart:
                # Of a result that is more than the state, only that part is vouched for.
                return "" if position in self.named else NOT_NAMED.format(each.name)
            if is_named:
                return ""
            if record is not None:
                return record.problem
            return self._unproven_by_source(each, position, converted, asked)
        if not position.is_output:
            unequal = {each.index_of(name): text for name, text in record.unequal.items()}
            return f"its shards differed at {at}" if (at := unequal.get(position.index)) else ""
        key = "single" if position.index == SINGLE else str(position.index)
        if key in record.varies:
            return record.varies[key]
        for argument, outputs in record.with_.items():
            index = each.index_of(argument)
            is_equal = index is not None and (
                Position.of(each.made_at, index, is_output=False) in converted
            )
            if key in outputs and not is_equal:
                return outputs[key]
        return ""

    def _unproven_by_source(
        self, each: Map, position: Position, converted: Set[Position], asked: Position
    ) -> str:
        if not position.is_output:
            return ""
        taken = frozenset(
            index
            for index in range(max(each.counts, default=0))
            if Position.of(each.made_at, index, is_output=False) in converted
        )
        results = self._read_source(each, taken)
        reason = results.reason(position.index)
        differing = results.fields(position.index) if reason else None
        if differing is not None:
            method, names = self.wanted.get(position, differing)
            self.wanted[position] = (method, names | differing[1])
        if position in self.fields:
            # What it gives is a state again, with no more fields that differ.
            found = results.fields(position.index)
            is_same = found is not None and found[1] <= {*self.fields[position].names}
            return "" if is_same or not reason else reason
        if reason and self.flow.maps.evidence.has_run:
            return f"{reason}; {NOT_REACHED}"
        if reason and results.refused is not None:
            reason += RUN.format(f"{each.name}:{argument_name(each, asked)}")
        return reason

    def _read_source(self, each: Map, taken: Set[int]) -> Results:
        names = each.parameters
        arguments: list[Argument] = []
        for index in range(max(each.counts, default=len(names))):
            name = names[index] if index < len(names) else f"argument {index}"
            is_equal = index in taken or index in each.static or each.in_axis(index) is None
            position = Position.of(each.made_at, index, is_output=False)
            if index in taken and position in self.fields:
                names_of = self.fields[position].names
                arguments.append({field: Cause(f"`{name}.{field}`") for field in names_of})
            else:
                arguments.append(None if is_equal else Cause(f"`{name}`"))
        rest = Value() if each.static else None
        if each.has_keywords:
            rest = Value(Cause("an argument that is passed by keyword"))
        functions = self.flow.maps.functions_of(each)
        return self._proof.varying(each.module, functions, each.axis, arguments, rest)


def _argument_of(site: Map, states: Sequence[Element]) -> str:
    """Returns the argument of a map that is one of some states, "" if it has no name there."""
    taken = [
        each.position.index
        for each in states
        if each.position is not None
        and each.position.site == site.key
        and not each.position.is_output
    ]
    names, is_above = site.parameters, is_decorator(site.module.parent(site.node), site.node)
    is_named = bool(taken) and min(taken) < len(names) and not is_above and not site.obstacle
    return names[min(taken)] if is_named else ""


def is_simple(change: Change) -> bool:
    """Tells whether the value that changes is a name, so that its fields can be written."""
    value = change.node if change.kept is None else change.kept
    return isinstance(value, (ast.Name, ast.Attribute)) and change.maker is None


def argument_name(each: Map, position: Position) -> str:
    """Returns how the user names an argument or a result.

    Results are ``return``, or ``return[1]`` of several.
    """
    if position.is_output:
        return "return" if position.index == SINGLE else f"return[{position.index}]"
    names = each.parameters
    return names[position.index] if position.index < len(names) else str(position.index)


def _convert(flow: Flow, group: list[Element], decisions: Decisions) -> None:
    is_donated = False
    for each in group:
        if each.position is not None:
            site = flow.maps.by_key(each.position.site)
            into = decisions.results if each.position.is_output else decisions.arguments
            into.setdefault(site.key, set()).add(each.position.index)
            is_donated |= not each.position.is_output and each.position.index in site.donated
    fields = next((decisions.fields[each.position] for each in group
                   if each.position in decisions.fields), None)  # fmt: skip
    seen: dict[ast.AST, Change] = {}
    for each in group:
        of_state = fields if not each.is_part else None
        seen.update({
            node: change if change.is_part else dataclasses.replace(change, fields=of_state)
            for node, change in each.changes.items()
        })  # fmt: skip
    for node, (change, _, _) in boundaries(group).items():
        seen[node] = change if change.is_part else dataclasses.replace(change, fields=fields)
    decisions.changes += [(change, is_donated) for change in seen.values()]


def _stays(
    flow: Flow,
    judge: _Judge,
    refused: list[tuple[list[Element], Reason]],
    decisions: Decisions,
) -> Iterator[Stay]:
    """Returns what a reader would ask about: state that stays, and pmaps where nothing changed."""
    reported: set[SiteKey] = set()
    for group, (place, reason) in refused:
        positions = sorted(each.position for each in group if each.position is not None)
        is_made = any(each.is_made for each in group) or any(p in judge.named for p in positions)
        taken, given = (
            {p.site for p in positions if p.is_output is kind} for kind in (False, True)
        )
        # State is also what a step gives and takes again.
        if not is_made and not taken & given:
            continue
        reported |= {position.site for position in positions}
        site = flow.maps.by_key(positions[0].site)
        words = [argument_name(site, p) for p in positions if p.site == site.key]
        what = f"{site.name}: {', '.join(words)}"
        yield Stay(site.made_at, what, reason + _where(place, site.made_at), site.site)
    for each in flow.maps:
        if each.key in reported or each.key in decisions.arguments or each.key in decisions.results:
            continue
        yield Stay(each.made_at, each.name, _why(flow, each, refused), each.site)


def _why(flow: Flow, each: Map, refused: list[tuple[list[Element], Reason]]) -> str:
    if each.record is not None and each.record.problem:
        return each.record.problem
    for group, (place, reason) in refused:
        if any(one.position is not None and one.position.site == each.key for one in group):
            return reason + _where(place, each.made_at)
    if each.record is None and flow.maps.evidence.has_run:
        return NOT_REACHED
    return "none of its arguments and results are followed"


def _where(place: Place, near: Place) -> str:
    """Returns where a reason was seen, if that is elsewhere."""
    if place == near:
        return ""
    return f" (line {place.line})" if place.path == near.path else f" ({place.path}:{place.line})"
