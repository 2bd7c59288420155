"""The leaves of a call, noted: what JAX has for a value, as an array of numpy's and its facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pmapx.migrate.verify.leaves import Noted, note, note_object

Leaf = tuple[dict[str, Any], Noted]


def note_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], donates: Callable[[int | str], bool]
) -> list[Leaf]:
    """Notes the arguments of a call, each with its place and whether it is donated."""
    inputs = []
    for path, leaf in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]:
        is_keyword = path[0].idx == 1
        which = path[1].key if is_keyword else path[1].idx
        facts = {
            "argument": which,
            "path": jax.tree_util.keystr(path[2:]),
            "is_donated": donates(which),
        }
        inputs.append((facts, note_leaf(leaf)))
    return inputs


def note_outputs(result: Any) -> list[Leaf]:
    """Notes the results of a call."""
    return [
        ({"path": jax.tree_util.keystr(path)}, note_leaf(leaf))
        for path, leaf in jax.tree_util.tree_flatten_with_path(result)[0]
    ]


def note_deleted(inputs: list[Leaf], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Adds which arguments are gone after the call."""
    for (facts, _), leaf in zip(inputs, jax.tree.leaves((args, kwargs)), strict=True):
        facts["is_deleted"] = isinstance(leaf, jax.Array) and leaf.is_deleted()


def note_leaf(leaf: Any) -> Noted:
    """Notes one leaf: an array of JAX or numpy, a number, or any other object."""
    if isinstance(leaf, jax.Array):
        if leaf.is_deleted():
            return Noted({"gone": True})
        name = str(leaf.dtype)
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if not leaf.is_fully_addressable:
            return Noted({"gone": True})
        # A copy, since reading leaves the values with the array, and may keep it from donation.
        return note(np.asarray(jax.device_put(leaf, leaf.sharding, may_alias=False)), name)
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype == jax.dtypes.float0:
        return note(np.zeros(leaf.shape, np.bool_), "float0")
    if isinstance(leaf, (np.ndarray, np.generic)) and _is_numeric(leaf.dtype):
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return note(np.asarray(leaf, dtype), str(dtype))
    if isinstance(leaf, (bool, int, float, complex)):
        array = np.asarray(leaf)
        if _is_numeric(array.dtype):
            return note(array, type(leaf).__name__)
    return note_object(leaf)


def _is_numeric(dtype: Any) -> bool:
    # Types such as bfloat16 are of kind V, and without fields.
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.names is None)
