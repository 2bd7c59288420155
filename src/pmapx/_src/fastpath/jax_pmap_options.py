"""What a function of ``jax.pmap`` was told."""

from __future__ import annotations

import inspect
import types
from typing import Any

import jax

from pmapx._src.fastpath.jax_src import PUBLIC_ONLY


def pmap_options(function: Any) -> dict[str, Any] | None:
    """Returns what ``jax.pmap`` was told when it made a function; None when it does not show.

    Without this, ``jax.pmap`` is known under ``install()`` alone.
    """
    if PUBLIC_ONLY or not isinstance(function, types.FunctionType):
        return None
    told = inspect.getclosurevars(function).nonlocals.get("infer_params")
    if not isinstance(told, types.FunctionType):
        return None
    seen = inspect.getclosurevars(told).nonlocals
    if not _PMAP_CLOSURE.issubset(seen):
        return None
    static = tuple(seen["static_broadcasted_tuple"])
    count = len(static) + 1 + max(seen["donate_tuple"], default=0)
    dynamic = [position for position in range(count) if position not in static]
    internal = seen["axis_name"] == "_internal_pmap_axis_name"
    return {
        "axis_name": None if internal else seen["axis_name"],
        "in_axes": seen["in_axes"],
        "out_axes": jax.tree.unflatten(seen["out_axes_tree"], seen["out_axes_flat"]),
        "static_argnums": static,
        "donated_argnums": tuple(dynamic[index] for index in seen["donate_tuple"]),
        "devices": seen["devices"],
        "backend": seen["backend"],
        "axis_size": seen["axis_size"],
    }


_PMAP_CLOSURE = {
    *("axis_name", "axis_size", "backend", "devices", "donate_tuple", "in_axes", "out_axes_flat"),
    *("out_axes_tree", "static_broadcasted_tuple"),
}
