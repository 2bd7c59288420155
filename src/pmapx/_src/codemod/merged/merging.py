"""Which batches and results are merged: those whose every place agrees."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Place
from pmapx._src.codemod.merged.batch_flow import BatchFlow
from pmapx._src.codemod.merged.leftovers import without_leftovers
from pmapx._src.codemod.replicated.decisions import (
    COUNTS,
    NOT_SETTLED,
    Merging,
    Positions,
    Stay,
    argument_name,
)
from pmapx._src.codemod.replicated.groups import Change, Element, Position, refs
from pmapx._src.codemod.replicated.maps import BARE, Map, Maps, SiteKey
from pmapx._src.codemod.replicated.unseen_callers import passed_on
from pmapx._src.source import files

RANK = "it may be one number per device: nothing shows an axis after the device axis"
DONATED = "it is donated, and the array that it is made from may be used again"
UNREAD = "the function that splits or merges it may be used in a file that is not read"
TRACED = "the function that splits or merges it is called in a traced function, too"
MIXED = "other arguments stay stacked, and its function cannot be edited"
Reason = tuple[Place, str]


class Unread:
    """The files of a project that are not followed: what they may use must not change."""

    def __init__(self, modules: Sequence[Module]) -> None:
        paths = modules[0].project.paths if modules else {}
        followed = {os.path.normpath(module.path) for module in modules}
        self._paths = [shown for path, shown in paths.items() if path not in followed]
        self._texts: list[bytes] | None = None

    def has(self, module: Module, function: str) -> bool:
        """Returns whether a file names a function, and the module that it is of."""
        if self._texts is None:
            read = [files.read_bytes(path) for path in self._paths]
            self._texts = [data for data in read if isinstance(data, bytes)]
        name, stem = function.encode(), os.path.basename(module.path).removesuffix(".py").encode()
        return any(name in data and stem in data for data in self._texts)


def merge(
    modules: Sequence[Module], maps: Maps, arguments: Positions, results: Positions
) -> Merging:
    """Returns what is merged, of a program whose replicated arguments and results are known."""
    flow = BatchFlow(modules, maps)
    flow.follow()
    unseen = passed_on(flow)
    unread = Unread(modules)
    found = Merging()
    groups = [
        (group, sorted(each.position for each in group if each.position is not None))
        for group in flow.graph.groups()
    ]
    reasons = [
        _reason(flow, group, positions, unseen, (arguments, results), unread) if positions else None
        for group, positions in groups
    ]
    _leave_mixed(flow, groups, reasons, arguments)
    for (group, positions), reason in zip(groups, reasons, strict=True):
        if not positions:
            continue
        if reason is None:
            _convert(flow, group, positions, found)
        elif any(each.is_made or _is_merged_somewhere(each) for each in group):
            found.stays += _stays(flow, positions, reason)
    found.changes = without_leftovers(flow, found.changes)
    return found


def _leave_mixed(
    flow: BatchFlow,
    groups: Sequence[tuple[list[Element], list[Position]]],
    reasons: list[Reason | None],
    replicated: Positions,
) -> None:
    """Leaves arguments stacked if others stay so, where no body can be edited.

    A lambda around the function would convert each of them on its own.
    """
    is_changed = True
    while is_changed:
        is_changed = False
        merged: dict[SiteKey, set[int]] = {}
        for (_, positions), reason in zip(groups, reasons, strict=True):
            for each in positions if reason is None else ():
                merged.setdefault(each.site, set()).update(() if each.is_output else (each.index,))
        for number, (_, positions) in enumerate(groups):
            for each in positions if reasons[number] is None else ():
                site = flow.maps.by_key(each.site)
                known = merged.get(each.site, set()) | set(replicated.get(each.site, ()))
                if site.is_wrapped and not set(range(max(site.counts, default=0))) <= known:
                    reasons[number] = site.made_at, MIXED
                    is_changed = True


def _is_merged_somewhere(element: Element) -> bool:
    return any(isinstance(change.node, ast.Call) for change in element.changes.values())


def _reason(
    flow: BatchFlow,
    group: list[Element],
    positions: list[Position],
    unseen: Mapping[Element, Reason],
    replicated: tuple[Positions, Positions],
    unread: Unread,
) -> Reason | None:
    """Returns why a group stays stacked."""
    sites = {position.site: flow.maps.by_key(position.site) for position in positions}
    if not flow.is_settled:
        return sites[positions[0].site].made_at, NOT_SETTLED
    found = [(place, why) for each in group for place, why in each.reasons.items()]
    # What takes a batch that is not followed there needs it as it is.
    found += [(place, why) for each in group for _, place, why in each.boundaries.values()]
    found += [unseen[each] for each in group if each in unseen]
    for change in (change for each in group for change in each.changes.values()):
        around = change.module.functions_around(change.node)
        if flow.traced_too.intersection(around):
            found.append((change.module.place(change.node), TRACED))
        elif around and _passes(flow, change.module, around[-1], group, unread):
            found.append((change.module.place(change.node), UNREAD))
    found.sort(key=lambda item: (item[0].path, item[0].line, item[0].column))
    if found:
        return found[0]
    is_made = any(each.is_made for each in group)
    for position in positions:
        site = sites[position.site]
        why = _obstacle(site)
        if position.index in replicated[position.is_output].get(site.key, ()):
            why = why or "it is replicated"
        if position.is_output:
            is_fed = is_made and any(p.site == position.site for p in positions if not p.is_output)
            is_entire = not any(each.is_taken_apart for each in group)
            if not is_entire or not (is_fed or any(each in flow.two_axes for each in group)):
                why = why or RANK
        elif position.index in site.donated and not _is_fresh(group):
            why = why or DONATED
        if why:
            return site.made_at, why
    return None


def _passes(
    flow: BatchFlow, module: Module, function: ast.AST, group: list[Element], unread: Unread
) -> bool:
    """Returns whether a function takes or gives a value of a group, perhaps in an unread file."""
    if not isinstance(function, ast.FunctionDef) or not unread.has(module, function.name):
        return False
    held = [value for value, _ in flow.returned(module, function)]
    for (taking, _), sent in flow.passed.items():
        if taking is function:
            held += [flow.value(home, arg) for home, arg in sent]
    return any(ref.element.root is group[0].root for value in held for ref in refs(value))


def _obstacle(site: Map) -> str:
    if not site.is_mergeable:
        return "its pmap is not written as jax.jit of jax.shard_map"
    if site.obstacle and site.obstacle != BARE:
        return site.obstacle
    if site.reasons:
        return next(iter(site.reasons.values()))
    return COUNTS if len(site.counts) > 1 or -1 in site.counts else ""


def _is_fresh(group: list[Element]) -> bool:
    """Returns whether batches are made of values that nothing else holds."""
    made = [change for each in group if each.is_made for change in each.changes.values()]
    return all(isinstance(change.kept, ast.Call) or change.kept is change.node for change in made)


def _convert(
    flow: BatchFlow, group: list[Element], positions: list[Position], found: Merging
) -> None:
    for position in positions:
        into = found.results if position.is_output else found.arguments
        into.setdefault(position.site, set()).add(position.index)
    seen: dict[ast.AST, Change] = {}
    for each in group:
        seen.update(each.changes)
    for node, change in seen.items():
        found.changes.append(change)
        if node in flow.prefetched:
            module, kept = flow.prefetched[node]
            found.prefetched.append(module.place(kept))


def _stays(flow: BatchFlow, positions: list[Position], reason: Reason) -> list[Stay]:
    by_site: dict[SiteKey, list[Position]] = {}
    for position in positions:
        by_site.setdefault(position.site, []).append(position)
    found = []
    for key, several in by_site.items():
        site = flow.maps.by_key(key)
        words = ", ".join(argument_name(site, position) for position in several)
        found.append(Stay(site.made_at, f"{site.name}: {words}", reason[1], reason[0]))
    return found
