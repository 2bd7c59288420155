"""``x[i]`` as the original pmap's arrays had it: that row, on its own device, no communication."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax.sharding import NamedSharding

from pmapx._src import fastpath
from pmapx._src.arrays import local_shards

_INTEGERS = frozenset({int, *(np.dtype(code).type for code in np.typecodes["AllInteger"])})


def make_getitem(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns ``__getitem__`` for arrays: rows where they lie, every other index JAX's way."""

    def getitem(self: Any, index: Any) -> Any:
        kind = type(index)
        if kind in _INTEGERS or kind is slice:
            sharding = self.sharding
            if type(sharding) is NamedSharding:
                row = _row(self, sharding, index)
                if row is not None:
                    return row
        return original(self, index)

    return getitem


def make_iter(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns ``__iter__`` for arrays: the rows of a stacked one where they lie."""

    def iterate(self: Any) -> Iterator[Any]:
        sharding = self.sharding
        if type(sharding) is NamedSharding and _positions(self, sharding) is not None:
            return (self[i] for i in range(self.shape[0]))
        rest: Iterator[Any] = original(self)
        return rest

    return iterate


def _positions(x: Any, sharding: NamedSharding) -> tuple[int | None, ...] | None:
    """Says where the rows are, if they are to be read here and now, as they lie."""
    positions = local_shards.holders(sharding, x.shape)
    if positions is None or fastpath.is_staging() or x.is_deleted():
        return None
    return positions


def _row(x: Any, sharding: NamedSharding, index: Any) -> Any:
    """Returns the row or the slice of one that ``index`` means; None if it is not for us."""
    positions = _positions(x, sharding)
    if positions is None:
        return None
    size = len(positions)
    if type(index) is not slice:
        position = positions[index] if -size <= index < size else None
        return None if position is None else local_shards.row_at(x, position)
    start, stop = index.start, index.stop
    if index.step not in (None, 1) or type(start) is not int or type(stop) is not int:
        return None
    position = positions[start] if 0 <= start < size and stop == start + 1 else None
    return None if position is None else local_shards.slice_at(x, position)
