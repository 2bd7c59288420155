"""The arguments and results of a call, leaf by leaf, as numpy arrays and facts."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pmapx._src.verify.record.array_record import Array, Noted, note, note_object

Leaf = tuple[dict[str, Any], Noted]


def note_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], donates: Callable[[int | str], bool]
) -> list[Leaf]:
    """Notes the arguments of a call, each with its path and whether it is donated."""
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
    return [
        ({"path": jax.tree_util.keystr(path)}, note_leaf(leaf))
        for path, leaf in jax.tree_util.tree_flatten_with_path(result)[0]
    ]


def note_deleted(inputs: list[Leaf], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Adds which arguments are deleted after the call."""
    for (facts, _), leaf in zip(inputs, jax.tree.leaves((args, kwargs)), strict=True):
        facts["is_deleted"] = isinstance(leaf, jax.Array) and leaf.is_deleted()


def note_leaf(leaf: Any) -> Noted:
    if isinstance(leaf, jax.Array):
        if leaf.is_deleted():
            return Noted({"gone": True})
        name = str(leaf.dtype)
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return note(_read(leaf) if leaf.is_fully_addressable else _local_shards(leaf), name)
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


def _read(x: jax.Array) -> Array:
    # A copy, since JAX caches the values that it reads with the array, which may prevent donation.
    return np.asarray(jax.device_put(x, x.sharding, may_alias=False))


def _local_shards(x: jax.Array) -> Array:
    """Returns the shards of this process, side by side, of an array on several processes."""
    shards: dict[tuple[tuple[int, int], ...], Any] = {}
    for shard in x.addressable_shards:
        index = zip(shard.index, x.shape, strict=True)
        place = tuple((s.start or 0, size if s.stop is None else s.stop) for s, size in index)
        shards.setdefault(place, shard)
    # Along each axis: the local ranges, and where each of them starts in the result.
    ranges = [sorted({place[axis] for place in shards}) for axis in range(x.ndim)]
    starts = [np.cumsum([0, *(stop - start for start, stop in each)]) for each in ranges]
    part = np.zeros([int(each[-1]) for each in starts], x.dtype)
    for place, shard in shards.items():
        at = [starts[axis][ranges[axis].index(span)] for axis, span in enumerate(place)]
        box = [slice(a, a + size) for a, size in zip(at, shard.data.shape, strict=True)]
        part[tuple(box)] = _read(shard.data)
    return part


def _is_numeric(dtype: Any) -> bool:
    # Types such as bfloat16 have kind V, without fields.
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.names is None)
