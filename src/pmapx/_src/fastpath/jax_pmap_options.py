"""The options of a function that ``jax.pmap`` returned."""

import inspect
import types
from typing import Any

import jax

from pmapx._src.fastpath.jax_src import PUBLIC_ONLY


def pmap_options(function: Any) -> dict[str, Any] | None:
    """Returns the options of a function of ``jax.pmap``; None if they cannot be found.

    Without this, only functions of ``pmapx.pmap`` are recognized.
    """
    if PUBLIC_ONLY or not isinstance(function, types.FunctionType):
        return None
    infer_params = inspect.getclosurevars(function).nonlocals.get("infer_params")
    if not isinstance(infer_params, types.FunctionType):
        return None
    found = inspect.getclosurevars(infer_params).nonlocals
    if not _PMAP_CLOSURE.issubset(found):
        return None
    static = tuple(found["static_broadcasted_tuple"])
    count = len(static) + 1 + max(found["donate_tuple"], default=0)
    dynamic = [position for position in range(count) if position not in static]
    internal = found["axis_name"] == "_internal_pmap_axis_name"
    return {
        "axis_name": None if internal else found["axis_name"],
        "in_axes": found["in_axes"],
        "out_axes": jax.tree.unflatten(found["out_axes_tree"], found["out_axes_flat"]),
        "static_argnums": static,
        "donated_argnums": tuple(dynamic[index] for index in found["donate_tuple"]),
        "devices": found["devices"],
        "backend": found["backend"],
        "axis_size": found["axis_size"],
    }


_PMAP_CLOSURE = {
    *("axis_name", "axis_size", "backend", "devices", "donate_tuple", "in_axes", "out_axes_flat"),
    *("out_axes_tree", "static_broadcasted_tuple"),
}
