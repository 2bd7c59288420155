"""``x[i]`` as for the original pmap's outputs: that shard on its device, without communication."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax.sharding import NamedSharding

from pmapx._src import fastpath
from pmapx._src.arrays import local_shards

_INTEGERS = frozenset({int, *(np.dtype(code).type for code in np.typecodes["AllInteger"])})


def make_getitem(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns an ``__getitem__`` that reads shards on their devices, and leaves the rest to JAX."""

    def getitem(self: Any, index: Any) -> Any:
        kind = type(index)
        if kind in _INTEGERS or kind is slice:
            sharding = self.sharding
            if type(sharding) is NamedSharding:
                shard = _shard(self, sharding, index)
                if shard is not None:
                    return shard
        return original(self, index)

    return getitem


def make_iter(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns an ``__iter__`` that reads shards on their devices, and leaves the rest to JAX."""

    def iterate(self: Any) -> Iterator[Any]:
        sharding = self.sharding
        if type(sharding) is NamedSharding and _positions(self, sharding) is not None:
            return (self[i] for i in range(self.shape[0]))
        rest: Iterator[Any] = original(self)
        return rest

    return iterate


def _positions(x: Any, sharding: NamedSharding) -> tuple[int | None, ...] | None:
    """Returns the position of each local shard, or None if JAX should index the array."""
    positions = local_shards.shard_positions(sharding, x.shape)
    if positions is None or fastpath.is_staging() or x.is_deleted():
        return None
    return positions


def _shard(x: Any, sharding: NamedSharding, index: Any) -> Any:
    positions = _positions(x, sharding)
    if positions is None:
        return None
    size = len(positions)
    if type(index) is not slice:
        position = positions[index] if -size <= index < size else None
        return None if position is None else local_shards.squeezed_shard(x, position)
    start, stop = index.start, index.stop
    if index.step not in (None, 1) or type(start) is not int or type(stop) is not int:
        return None
    position = positions[start] if 0 <= start < size and stop == start + 1 else None
    return None if position is None else local_shards.copied_shard(x, position)
