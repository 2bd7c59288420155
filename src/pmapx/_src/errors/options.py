"""Mistakes in what pmap is given when the function is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pmapx._src.errors.base import PmapxError


class NotCallable(PmapxError, TypeError, code="PMX001"):
    """What was given to pmap cannot be called.

    The first argument of ``pmap`` is the function to map. A common cause is a call too many:
    ``pmap(f(x))`` in place of ``pmap(f)(x)``, or a decorator that returned None.
    """

    def __init__(self, fun: Any) -> None:
        super().__init__(
            f"pmap takes a function, but argument 0 'fun' is {fun!r} of type "
            f"{type(fun).__name__}, which cannot be called and so has no axis to map.",
            fix="pass the function itself: pmap(f)(x), not pmap(f(x)).",
        )


class AxesNotIntegers(PmapxError, TypeError, code="PMX002"):
    """A leaf of in_axes or out_axes is neither an integer nor None.

    An axis says where the mapped dimension lies: an integer (negative ones count from the end),
    or None for a value that all devices share. Containers of those must match the arguments
    (``in_axes``) or the result (``out_axes``), or be a prefix of them.
    """

    def __init__(self, which: str, axes: Any, leaf: Any) -> None:
        super().__init__(
            f"pmap {which} must be an int, None, or (nested) container with those types as "
            f"leaves, but got {axes!r}, whose leaf {leaf!r} is of type {type(leaf).__name__}.",
            fix=f"write every axis in {which} as an integer or None; partition specs belong to "
            "shard_map.",
        )


class UnknownOption(PmapxError, ValueError, code="PMX003"):
    """An option of pmap has a value that it cannot have.

    ``reshard`` says what happens to an input that lies elsewhere: ``"allow"`` moves it,
    ``"warn"`` moves it and warns, ``"error"`` refuses. ``axis_size`` is a positive integer.
    ``devices`` are devices of JAX, as ``jax.devices()`` lists them.
    """

    def __init__(self, option: str, value: Any, expected: str, function: str = "pmap") -> None:
        super().__init__(
            f"{function} got {option}={value!r} as its argument {option!r}, which takes "
            f"{expected}.",
            fix=f"pass {expected}, or leave {option} out.",
        )


class NoDevices(PmapxError, ValueError, code="PMX004"):
    """The list of devices is empty.

    ``devices`` names the devices to map over, in order. An empty list usually comes from a
    filter that matched nothing, such as ``jax.devices("gpu")[8:]``.
    """

    def __init__(self, function: str = "pmap") -> None:
        super().__init__(
            f"'devices' argument to {function} must be non-empty, or None. Got an empty sequence, "
            "so there is no device for the mapped axis.",
            fix="pass at least one device, or leave devices out to use all of them.",
        )


class RepeatedDevice(PmapxError, ValueError, code="PMX005"):
    """A device is listed twice.

    Each element of the mapped axis runs on a device of its own. To run several elements on one
    device, leave ``devices`` without repeats and pass ``oversubscribe=True``.
    """

    def __init__(self, device: Any, positions: Sequence[int], function: str = "pmap") -> None:
        super().__init__(
            f"the argument 'devices' of {function} names {device} at positions "
            f"{', '.join(map(str, positions))}: a device can hold one element of the mapped axis.",
            fix="name each device once; oversubscribe=True runs more elements than devices.",
        )


class BadArgnums(PmapxError, ValueError, code="PMX006"):
    """static_broadcasted_argnums or donate_argnums cannot be what was meant.

    They hold positions of positional arguments, as integers. An argument cannot be both static
    and donated: a static argument is a Python value with no buffer to give away.
    """

    def __init__(self, which: str, argnums: Any, problem: str) -> None:
        super().__init__(
            f"pmap got {which}={argnums!r}: {problem}.",
            fix=f"give {which} the positions of positional arguments, counted from 0.",
        )
