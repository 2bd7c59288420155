"""``--fsdp``: the state of jitted steps sharded over the data axis, if that is proven."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pmapx._src.audit.report.what_if_table import Cost, WhatIf, groups_of
from pmapx._src.audit.what_if import SMALLEST
from pmapx._src.codemod.to_jit.decisions import Decision
from pmapx._src.codemod.to_jit.placement import fsdp_edits
from pmapx._src.codemod.to_jit.placement.fsdp_function import CannotShardError
from pmapx._src.codemod.to_jit.placement.version import CannotEditError, Holds, Version
from pmapx._src.pages.formatting import table


def sharded(version: Version, chosen: Sequence[Decision], holds: Holds) -> Version:
    """Returns a version with its state sharded, or the same one with notes of why not."""
    found: list[Mapping[str, Any]] = [
        next((each["state"] for each in d.compared if each["state"]), {}) for d in chosen
    ]
    before = [each.compared for each in chosen]
    try:
        new = _edited(version, chosen, found)
        if not holds(chosen, new):
            refused = next(each for each in chosen if each.reasons)
            raise CannotShardError(f"{refused.name}: {refused.reasons[0]}")
        for each, old, facts in zip(chosen, before, found, strict=True):
            first, again = (_cost(of).get("compiles", 0) for of in (old, each.compared))
            if facts["held"] and again > first:
                raise CannotShardError(f"{each.name} compiles {again} times, not {first}")
    except CannotEditError as error:
        for each, compared, facts in zip(chosen, before, found, strict=True):
            each.reasons, each.compared = [], compared
            if facts.get("held") or facts.get("has_state"):
                each.notes.append(f"its state stays replicated: {error}")
        return version
    for each, old, facts in zip(chosen, before, found, strict=True):
        if facts["held"]:
            each.replicated = _cost(old)
            now = _cost(each.compared)
            each.notes += _table(each.axis, each.replicated, now)
            if "there" in now and "there" in each.replicated:
                each.notes += _table(each.axis, each.replicated["there"], now["there"])
    return new


def _edited(
    version: Version, chosen: Sequence[Decision], found: Sequence[Mapping[str, Any]]
) -> Version:
    axes = {each.axis for each in chosen}
    if not all(found):
        raise CannotShardError("a step was not compared")
    if not any(each["outputs"] for each in found):
        if any(each["is_unplaced"] for each in found):
            raise CannotShardError("it is not placed on the mesh before the first call")
        raise CannotShardError(
            f"no array of it has {SMALLEST:,} elements or more and a dimension that the number of "
            "devices divides"
        )
    if len(axes) > 1:
        raise CannotShardError(f"the steps have several axes, {' and '.join(sorted(axes))}")
    sites = [
        {**site, "held": facts["held"]} for site, facts in zip(version.sites, found, strict=True)
    ]
    with_held = Version(version.root, version.data, sites)
    new = with_held.edited(fsdp_edits.edits(with_held, found, axes.pop()))
    return new.without_unused(version)


def _cost(compared: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((each["cost"] for each in compared if each["cost"]), {})


def _table(axis: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns what a device holds and sends before and after, as ``audit --what-if fsdp`` does."""
    if "arguments" not in before or "arguments" not in after:
        why = after.get("problem") or before.get("problem", "it was not audited")
        return [f"memory and collectives with FSDP are not known: {why}"]
    held, then = before["arguments"], after["arguments"]
    sharded = tuple(path for path, size in then.items() if size < held.get(path, 0))
    roots = {re.split(r"[\[.]", path)[0] for path in sharded}
    groups = groups_of([path for path in then if re.split(r"[\[.]", path)[0] in roots])
    costs = []
    for cost in (before, after):
        by_group: dict[str, int] = {}
        for path, size in cost["arguments"].items():
            name = groups.get(path, "other arguments")
            by_group[name] = by_group.get(name, 0) + size
        costs.append(Cost(
            {name: size for name, size in by_group.items() if size}, cost["outputs"],
            cost["temporaries"], cost["memory"] or 0, cost["collectives"], cost["sent"],
            cost["seconds"],
        ))  # fmt: skip
    replicated, in_shards = costs
    found = WhatIf(axis, after["devices"], before=replicated, after=in_shards, sharded=sharded)
    where = f" on {after['topology']}" if "topology" in after else ""
    heads = [f"per device{where}", "replicated", f"FSDP over {axis}={found.devices}"]
    return [*table(heads, found.rows(), right=(1, 2)), *found.notes()]
