"""A report as one page with pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pmapx._src.audit import findings
from pmapx._src.audit.report.as_text import across
from pmapx._src.audit.report.data import AuditedFunction, AuditReport, Leaf
from pmapx._src.audit.report.units import arrays, place
from pmapx._src.pages import shell

DRAWN_DEVICES = 64
"""Devices up to which a picture shows each by its number."""


def render(report: AuditReport) -> str:
    """Returns the page as one HTML document."""
    title = f"pmapx audit: {report.command}" if report.command else "pmapx audit"
    return shell.render(
        shell.Page(
            title,
            data={"audit": _content(report)},
            styles=("shell.css", "audit.css"),
            scripts=("shell.js", "audit_pictures.js", "audit.js"),
        )
    )


def _content(report: AuditReport) -> dict[str, Any]:
    """What ``to_dict`` gives, with what the page would have to work out from it."""
    content = report.to_dict()
    content["functions"] = [
        _function(function) | {"variant": variant} for function, variant in _variants(report)
    ]
    content["rowReads"] = [
        {**read, "place": place(read["place"])} for read in content.pop("row_reads")
    ]
    content["pages"] = {code: kind.page() for code, kind in findings.all_findings().items()}
    for remark in content["findings"]:
        remark["place"] = place(remark["place"]) if remark["place"] else None
    return content


def _variants(report: AuditReport) -> Iterator[tuple[AuditedFunction, str | None]]:
    """Yields each function with what tells it from others of its name and line."""
    places = [(each.name, each.place, each.mapped_at) for each in report.functions]
    for index, function in enumerate(report.functions):
        total, number = places.count(places[index]), 1 + places[:index].count(places[index])
        yield function, f"signature {number} of {total}" if total > 1 else None


def _function(function: AuditedFunction) -> dict[str, Any]:
    memory = function.memory
    return {
        "name": function.name,
        "kind": function.kind,
        "place": place(function.place),
        "mappedAt": place(function.mapped_at)
        if function.mapped_at and function.mapped_at != function.place
        else None,
        "axisSizes": dict(function.axis_sizes),
        "deviceKind": function.device_kind,
        "devices": function.device_count,
        "arguments": [_leaf(leaf, function) for leaf in function.arguments],
        "outputs": [_leaf(leaf, function) for leaf in function.outputs],
        "exchanges": [
            {
                "kind": exchange.kind,
                "along": exchange.along,
                "payload": exchange.payload,
                "sent": exchange.sent_in_a_call,
                "between": exchange.between_in_a_call,
                "times": exchange.times,
                "place": place(exchange.place),
                "operation": exchange.operation,
                "isWritten": exchange.is_written,
                "seconds": exchange.seconds_in_a_call,
            }
            for exchange in function.exchanges
        ],
        "memory": memory
        and {
            "arguments": memory.arguments,
            "outputs": memory.outputs,
            "temporaries": memory.temporaries,
            "aliases": memory.aliases,
            "total": memory.total,
        },
        "donations": [
            {"path": each.path, "isUsed": each.is_used, "reason": each.reason}
            for each in function.donations
        ],
        "reused": arrays([each.path for each in function.donations if each.is_used]),
        "history": {
            "calls": function.history.calls,
            "traces": function.history.traces,
            "compiles": function.history.compiles,
            "reasons": list(function.history.reasons),
            "moved": [
                {"path": move.path, "reason": move.reason, "count": move.count}
                for move in function.history.moved
            ],
        },
        "sent": function.sent_in_a_call,
        "between": function.between_in_a_call,
        "seconds": function.seconds_in_a_call,
        "copies": function.stacked_copies,
        "scaling": _scaling(function),
        "codes": [remark.code for remark in function.findings],
    }


def _scaling(function: AuditedFunction) -> dict[str, Any] | None:
    if function.scaling is None:
        return None
    return {
        "points": [
            {
                "devices": point.devices,
                "topology": point.topology,
                "collectives": point.collectives,
                "sent": point.sent,
                "between": point.between,
                "memory": point.memory,
                "temporaries": point.temporaries,
                "compileSeconds": point.compile_seconds,
            }
            for point in function.scaling.points
        ],
        "growing": [str(growth) for growth in function.scaling.growing],
    }


def _leaf(leaf: Leaf, function: AuditedFunction) -> dict[str, Any]:
    state = "replicated" if not leaf.is_split else "stacked" if leaf.is_equal else "varies"
    if not leaf.is_split and not leaf.is_equal:
        state = "varies"
    return {
        "path": leaf.path,
        "type": leaf.type,
        "shape": list(leaf.shape),
        "shardShape": list(leaf.shard_shape),
        "spec": leaf.spec,
        "bytes": leaf.bytes_a_device,
        "state": state,
        "across": across(leaf),
        "copies": leaf.stacked_copies,
        "moved": leaf.moved,
        "parts": parts(leaf, function),
    }


def parts(leaf: Leaf, function: AuditedFunction) -> dict[str, Any] | None:
    """Says which devices hold each part of an array: rows and columns of parts.

    Dimensions that are not split make no parts; those after the first split one are drawn across.
    None where the axes of the mesh do not tell.

    >>> leaf = Leaf("x", (4, 6), "float32", (2, 6), (("a",), ()), 48)
    >>> function = AuditedFunction("f", "jit", None, {"a": 2, "b": 2}, "cpu", (), (), (), None, (),
    ...                            None)
    >>> parts(leaf, function)
    {'rows': 2, 'columns': 1, 'holders': [[0, 1], [2, 3]]}
    """
    sizes = function.axis_sizes
    split = [axes for axes in leaf.axes_by_dimension if axes]
    if any(axis not in sizes for axes in split for axis in axes):
        return None
    counts = [_count(axes, sizes) for axes in split]
    rows = counts[0] if counts else 1
    columns = 1
    for count in counts[1:]:
        columns *= count
    holders: list[list[int]] = []
    if function.device_count <= DRAWN_DEVICES:
        holders = [[] for _ in range(rows * columns)]
        for device in range(function.device_count):
            place_on_axis = _coordinates(device, sizes)
            part = 0
            for axes, count in zip(split, counts, strict=True):
                within = 0
                for axis in axes:
                    within = within * sizes[axis] + place_on_axis[axis]
                part = part * count + within
            holders[part].append(device)
    return {"rows": rows, "columns": columns, "holders": holders}


def _count(axes: tuple[str, ...], sizes: Any) -> int:
    count = 1
    for axis in axes:
        count *= sizes[axis]
    return count


def _coordinates(device: int, sizes: Any) -> dict[str, int]:
    """Returns where a device is on each axis of the mesh, the last axis fastest."""
    found = {}
    for axis in reversed(list(sizes)):
        device, found[axis] = divmod(device, sizes[axis])
    return found
