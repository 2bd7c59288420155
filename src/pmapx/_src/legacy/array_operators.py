"""Operators of arrays as the original pmap's outputs had them.

``x[i]`` is that shard on its device, without communication. In arithmetic between an output and an
array on one device, the output was transferred to that device, where JAX raises an error about
incompatible devices today. The patched operators retry on exactly that error; a call that succeeds
is unaffected.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from pmapx._src import fastpath
from pmapx._src.arrays import local_shards

_ARITHMETIC = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)
NAMES = (
    *(f"__{name}__" for name in _ARITHMETIC),
    *(f"__r{name}__" for name in _ARITHMETIC),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
)
"""The binary operators of arrays; ``x += y`` uses the same ones."""
_JAX_ERROR = "incompatible devices"
_INTEGERS = frozenset({int, *(np.dtype(code).type for code in np.typecodes["AllInteger"])})


def make_operator(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a binary operator that transfers both operands to one device if JAX raises."""

    def operator(self: Any, other: Any) -> Any:
        try:
            return original(self, other)
        except ValueError as error:
            together = _on_one_device(self, other) if _JAX_ERROR in str(error) else None
            if together is None:
                raise
        return original(*together)

    return operator


def _on_one_device(one: Any, other: Any) -> tuple[Any, Any] | None:
    """Returns both operands on one device, or None if that is not the cause of the error.

    It is the device of the operand that is on a single one. Two pmap outputs on different devices
    are transferred to the default device, uncommitted.
    """
    if type(one) is not type(other):
        return None
    if _is_sharded(one) and _is_sharded(other):
        device = jax.config.jax_default_device or jax.local_devices()[0]  # type: ignore[attr-defined]
        on_device = jax.device_put((one, other), device)
        return fastpath.uncommitted(on_device[0]), fastpath.uncommitted(on_device[1])
    if _is_sharded(one) and other.sharding.num_devices == 1:
        return jax.device_put(one, other.sharding), other
    if _is_sharded(other) and one.sharding.num_devices == 1:
        return one, jax.device_put(other, one.sharding)
    return None


def _is_sharded(x: jax.Array) -> bool:
    """Whether an array has a sharding like a pmap output, and can be transferred."""
    sharding = x.sharding
    return (
        isinstance(sharding, NamedSharding)
        and sharding.num_devices > 1
        and sharding.is_fully_addressable
    )


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
        return original(self)

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
