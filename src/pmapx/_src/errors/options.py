"""Mistakes in the arguments of pmap itself."""

from collections.abc import Sequence
from typing import Any

from pmapx._src.errors.base import PmapxError, shown


class NotCallable(PmapxError, TypeError, code="PMX001"):
    """The first argument of pmap is not callable.

    ``pmap`` takes the function to map. Common causes: ``pmap(f(x))`` instead of ``pmap(f)(x)``, or
    a decorator that returned None.
    """

    def __init__(self, fun: Any) -> None:
        super().__init__(
            f"pmap expects a callable as argument 0 'fun', got {shown(fun)} of type "
            f"{type(fun).__name__}.",
            fix="pass the function itself: pmap(f)(x), not pmap(f(x)).",
        )


class AxesNotIntegers(PmapxError, TypeError, code="PMX002"):
    """A leaf of in_axes or out_axes is neither an integer nor None.

    An integer is the position of the mapped axis (negative values count from the end); None means
    that the value is replicated. Containers of these must be a tree prefix of the arguments
    (``in_axes``) or of the output (``out_axes``).
    """

    def __init__(self, which: str, axes: Any, leaf: Any) -> None:
        super().__init__(
            f"pmap {which} must be an int, None, or (nested) container with those types as "
            f"leaves, but got {axes!r}, whose leaf {leaf!r} is of type {type(leaf).__name__}.",
            fix=f"use an integer or None for every leaf of {which}; partition specs are for "
            "shard_map.",
        )


class UnknownOption(PmapxError, ValueError, code="PMX003"):
    """An option has an invalid value.

    ``reshard`` is the policy for inputs with a sharding other than the one the program needs:
    ``"allow"`` reshards them, ``"warn"`` reshards them and warns, ``"error"`` raises.
    ``axis_size`` is a positive integer. ``devices`` is a sequence of ``jax.Device``.
    """

    def __init__(self, option: str, value: Any, expected: str, function: str = "pmap") -> None:
        super().__init__(
            f"{function} got an invalid value for its argument {option!r}: {option}={value!r}; "
            f"expected {expected}.",
            fix=f"pass {expected}, or omit {option}.",
        )


class NoDevices(PmapxError, ValueError, code="PMX004"):
    """The list of devices is empty.

    ``devices`` is the ordered list of devices to map over. An empty one usually comes from a
    filter that matched nothing, such as ``jax.devices("gpu")[8:]``.
    """

    def __init__(self, function: str = "pmap") -> None:
        super().__init__(
            f"'devices' argument to {function} must be non-empty, or None. Got an empty sequence.",
            fix="pass at least one device, or omit devices to use all of them.",
        )


class RepeatedDevice(PmapxError, ValueError, code="PMX005"):
    """A device is listed twice.

    Each index of the mapped axis runs on its own device. To run several on one device, list each
    device once and pass ``oversubscribe=True``.
    """

    def __init__(self, device: Any, positions: Sequence[int], function: str = "pmap") -> None:
        super().__init__(
            f"{function} got a duplicate in its argument 'devices': {device} is at positions "
            f"{', '.join(map(str, positions))}, but each device holds one shard of the mapped "
            "axis.",
            fix="list each device once; oversubscribe=True lets the mapped axis be larger than the "
            "number of devices.",
        )


class BadArgnums(PmapxError, ValueError, code="PMX006"):
    """static_broadcasted_argnums or donate_argnums is invalid.

    Both hold indices of positional arguments. An argument cannot be both static and donated: a
    static argument is a Python value, which has no buffer to donate.
    """

    def __init__(self, which: str, argnums: Any, problem: str) -> None:
        super().__init__(
            f"pmap got {which}={argnums!r}: {problem}.",
            fix=f"pass indices of positional arguments, counted from 0, in {which}.",
        )
