"""A report as one page with pictures."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

from pmapx._src.audit import findings
from pmapx._src.audit.report.as_text import across
from pmapx._src.audit.report.audit_report import AuditedFunction, AuditReport, Leaf
from pmapx._src.audit.report.baseline import Comparison
from pmapx._src.pages import shell
from pmapx._src.pages.formatting import arrays, place

DRAWN_DEVICES = 64
"""The most devices that a picture shows by their numbers."""


def render(report: AuditReport, comparison: Comparison | None = None) -> str:
    title = f"pmapx audit: {report.command}" if report.command else "pmapx audit"
    return shell.render(
        title,
        {"audit": _content(report) | _compared(comparison)},
        styles=("shell.css", "audit.css"),
        scripts=("shell.js", "audit_pictures.js", "audit.js"),
    )


def _compared(comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return {}
    rows = [
        {"cells": change.cells, "isWorse": change.is_worse, "cause": change.cause,
         "place": place(change.place) if change.place else None}
        for change in comparison.changes
    ]  # fmt: skip
    return {"compared": {"rows": rows, "tolerance": f"{comparison.tolerance:.0%}"}}


def _content(report: AuditReport) -> dict[str, Any]:
    """Returns what ``to_dict`` returns, with what the page would have to compute from it."""
    content = report.to_dict()
    content["functions"] = [
        _function(function) | {"variant": variant} for function, variant in _variants(report)
    ]
    content["shardReads"] = [
        {**read, "place": place(read["place"])} for read in content.pop("shard_reads")
    ]
    content["pages"] = {code: kind.page() for code, kind in findings.all_findings().items()}
    for remark in content["findings"]:
        remark["place"] = place(remark["place"]) if remark["place"] else None
    return content


def _variants(report: AuditReport) -> Iterator[tuple[AuditedFunction, str | None]]:
    """Yields each function with what distinguishes it from others of its name and line."""
    places = [(each.name, each.place, each.mapped_at) for each in report.functions]
    for index, function in enumerate(report.functions):
        total, number = places.count(places[index]), 1 + places[:index].count(places[index])
        yield function, f"signature {number} of {total}" if total > 1 else None


def _function(function: AuditedFunction) -> dict[str, Any]:
    is_mapped_elsewhere = function.mapped_at and function.mapped_at != function.place
    memory, scaling, what_if = function.memory, function.scaling, function.what_if
    return {
        "name": function.name,
        "kind": function.kind,
        "place": place(function.place),
        "mappedAt": place(function.mapped_at) if is_mapped_elsewhere else None,
        "axisSizes": dict(function.axis_sizes),
        "deviceKind": function.device_kind,
        "devices": function.device_count,
        "arguments": [_leaf(leaf, function) for leaf in function.arguments],
        "outputs": [_leaf(leaf, function) for leaf in function.outputs],
        "exchanges": [
            _camel_case(exchange)
            | {
                "along": exchange.along,
                "sent": exchange.sent_in_a_call,
                "between": exchange.between_in_a_call,
                "place": place(exchange.place),
                "seconds": exchange.seconds_in_a_call,
            }
            for exchange in function.exchanges
        ],
        "memory": memory and _camel_case(memory) | {"total": memory.total},
        "donations": [_camel_case(donation) for donation in function.donations],
        "reused": arrays([each.path for each in function.donations if each.is_used]),
        "history": _camel_case(function.history),
        "sent": function.sent_in_a_call,
        "between": function.between_in_a_call,
        "seconds": function.seconds_in_a_call,
        "copies": function.stacked_copies,
        "scaling": scaling
        and {
            "points": [_camel_case(point) | {"memory": point.memory} for point in scaling.points],
            "growing": [str(growth) for growth in scaling.growing],
        },
        "whatIf": what_if
        and {
            "reason": what_if.reason,
            "table": [what_if.heads(), *what_if.rows()],
            "notes": what_if.notes(),
        },
        "codes": [remark.code for remark in function.findings],
    }


def _camel_case(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass by the names that JavaScript has for them."""
    fields = dataclasses.asdict(value).items()
    return {re.sub("_(.)", lambda found: found[1].upper(), name): held for name, held in fields}


def _leaf(leaf: Leaf, function: AuditedFunction) -> dict[str, Any]:
    words = across(leaf)
    state = "varies" if not leaf.is_equal else "stacked" if leaf.is_split else "replicated"
    if words.startswith(("unknown", "not used")):
        state = "unknown"
    return {
        "path": leaf.path,
        "type": leaf.type,
        "shape": list(leaf.shape),
        "shardShape": list(leaf.shard_shape),
        "spec": leaf.spec,
        "bytes": leaf.bytes_a_device,
        "state": state,
        "across": words,
        "copies": leaf.stacked_copies,
        "moved": leaf.moved,
        "parts": parts(leaf, function),
    }


def parts(leaf: Leaf, function: AuditedFunction) -> dict[str, Any] | None:
    """Returns which devices hold each shard of an array, drawn as rows and columns.

    Dimensions that are not sharded are not drawn; those after the first sharded one are columns.
    None if the mesh lacks an axis.

    >>> leaf = Leaf("x", (4, 6), "float32", (2, 6), (("a",), ()), 48)
    >>> function = AuditedFunction("f", "jit", None, {"a": 2, "b": 2}, "cpu", (), (), (), None, (),
    ...                            None)
    >>> parts(leaf, function)
    {'rows': 2, 'columns': 1, 'holders': [[0, 1], [2, 3]]}
    """
    sizes = function.axis_sizes
    sharded = [axes for axes in leaf.axes_by_dimension if axes]
    if any(axis not in sizes for axes in sharded for axis in axes):
        return None
    counts = [math.prod(sizes[axis] for axis in axes) for axes in sharded]
    rows, columns = math.prod(counts[:1]), math.prod(counts[1:])
    holders: list[list[int]] = []
    if function.device_count <= DRAWN_DEVICES:
        holders = [[] for _ in range(rows * columns)]
        for device, position in enumerate(itertools.product(*map(range, sizes.values()))):
            at = dict(zip(sizes, position, strict=True))
            part = 0
            for axis in itertools.chain(*sharded):
                part = part * sizes[axis] + at[axis]
            holders[part].append(device)
    return {"rows": rows, "columns": columns, "holders": holders}
