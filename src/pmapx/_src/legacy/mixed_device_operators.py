"""``x / y`` of a pmapped result and an array on one device: computed there, as it was of old.

The original's results were no obstacle to an array that is committed to one device: they were
transferred to it. Today JAX refuses the two in one computation. Here the operators of arrays try
again on exactly that error; a call that succeeds only passes through.
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
"""The binary operators of arrays; Python makes ``x += y`` of the same."""
_REFUSAL = "incompatible devices"


def make_operator(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a binary operator for arrays that brings both to one device where JAX refuses."""

    def operator(self: Any, other: Any) -> Any:
        try:
            return original(self, other)
        except ValueError as error:
            together = _on_one_device(self, other) if _REFUSAL in str(error) else None
            if together is None:
                raise
        return original(*together)

    return operator


def _on_one_device(one: Any, other: Any) -> tuple[Any, Any] | None:
    """Returns both operands on one device; None if that is not what JAX refused.

    It is the device of the operand that has a single one. Results of pmaps over different devices
    meet on the default device, to which they are not committed.
    """
    if type(one) is not type(other):
        return None
    if _is_over_devices(one) and _is_over_devices(other):
        device = jax.config.jax_default_device or jax.local_devices()[0]  # type: ignore[attr-defined]
        on_device = jax.device_put((one, other), device)
        return fastpath.uncommitted(on_device[0]), fastpath.uncommitted(on_device[1])
    if _is_over_devices(one) and other.sharding.num_devices == 1:
        return jax.device_put(one, other.sharding), other
    if _is_over_devices(other) and one.sharding.num_devices == 1:
        return one, jax.device_put(other, one.sharding)
    return None


def _is_over_devices(x: jax.Array) -> bool:
    """Says whether an array is laid out as the results of pmap are, and can be transferred."""
    sharding = x.sharding
    return (
        isinstance(sharding, NamedSharding)
        and sharding.num_devices > 1
        and sharding.is_fully_addressable
    )
