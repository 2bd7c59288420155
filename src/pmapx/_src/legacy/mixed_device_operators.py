"""Arithmetic between a pmap output and an array on one device, as with the original pmap.

The original pmap's outputs were transferred to the device of the other operand. Today JAX raises
an error about incompatible devices. The patched operators retry on exactly that error; a call that
succeeds is unaffected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding

from pmapx._src import fastpath

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
