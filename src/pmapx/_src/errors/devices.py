"""Maps that the devices cannot hold, and inputs that may not be moved there."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from pmapx._src.errors.base import PmapxError


def _sizes(named_sizes: Sequence[tuple[Hashable, int]]) -> str:
    return " x ".join(f"{name!r} ({size})" for name, size in named_sizes)


class TooManyElements(PmapxError, ValueError, code="PMX201"):
    """The mapped axis is larger than the number of devices.

    pmap runs one element of the mapped axis on each device. With ``oversubscribe=True`` each
    device runs several, collectives included; or reshape ``(16, ...)`` to ``(8, 2, ...)`` and
    handle the second axis inside, for example with ``jax.vmap``.
    """

    def __init__(
        self, function: str, argument: str, shape: str, axis: int, size: int, available: int
    ) -> None:
        super().__init__(
            f"{function}: compiling computation that requires {size} logical devices, but only "
            f"{available} XLA devices are available (num_replicas={size}): {argument} is {shape}, "
            f"which has size {size} along mapped axis {axis}.",
            fix=f"pass oversubscribe=True to pmap, reshape to ({available}, ...), or run with "
            "more devices (XLA_FLAGS=--xla_force_host_platform_device_count=N on CPU).",
        )


class NestingTooLarge(PmapxError, ValueError, code="PMX202"):
    """Nested pmaps need more devices than there are.

    A pmap inside a pmap runs each inner element of each outer element on a device of its own, so
    the product of the sizes must not exceed the number of devices: those that JAX has, or those
    that were passed as ``devices``.
    """

    def __init__(
        self,
        function: str,
        named_sizes: Sequence[tuple[Hashable, int]],
        available: int,
        *,
        were_passed: bool = False,
    ) -> None:
        total = 1
        for _, size in named_sizes:
            total *= size
        problem = (
            f"compiling computation that requires {total} logical devices, but only {available} "
            f"XLA devices are available (num_replicas={total}), due to nested pmapped functions."
        )
        if were_passed:
            problem = (
                f"pmapped function requires {total} local devices to run due to nested pmapped or "
                f"other parallel functions, but only {available} are available."
            )
        super().__init__(
            f"{function}: {problem}\n"
            f"    nesting of mapped axes, outermost first: {_sizes(named_sizes)}; the argument "
            "shapes give these sizes",
            fix="map fewer elements, use jax.vmap for the inner map, or pass oversubscribe=True "
            "to the outermost pmap.",
        )


class NestedDevices(PmapxError, ValueError, code="PMX203"):
    """An inner pmap names its own devices.

    The outermost pmap decides on the devices; the inner ones share them out.
    """

    def __init__(self, function: str, axis_name: Hashable, outer: Hashable) -> None:
        super().__init__(
            f"Nested pmap with explicit devices argument. {function}, mapped over axis "
            f"{axis_name!r}, is called inside the pmap over axis {outer!r}, which has its devices "
            "already.",
            fix="give the argument 'devices' to the outermost pmap only.",
        )


class ReshardRefused(PmapxError, ValueError, code="PMX301"):
    """An input lies elsewhere, and reshard="error" forbids to move it.

    The default, ``reshard="allow"``, moves such an input to where the program needs it, as the
    original pmap did. ``reshard="error"`` is for programs that want to see every move.
    """

    def __init__(self, function: str, argument: str, shape: str, found: Any, wanted: Any) -> None:
        super().__init__(
            f"{function} got {argument}, {shape}, with sharding\n    {found}\n  but its mapped "
            f"axis needs\n    {wanted}\n  and reshard='error' forbids to move it.",
            fix="put it there before the call with jax.device_put(x, sharding), or pass "
            "reshard='allow' to pmap.",
        )


class MoveForbidden(PmapxError, ValueError, code="PMX302"):
    """An input lies elsewhere, and the transfer guard forbids to move it.

    Under ``jax.transfer_guard("disallow")`` nothing moves between devices unless it is asked for,
    and moving an argument of pmap is not. Correctly placed inputs pass.
    """

    def __init__(self, function: str, argument: str, shape: str, found: Any, wanted: Any) -> None:
        super().__init__(
            f"{function} got {argument}, {shape}, with sharding\n    {found}\n  but its mapped "
            f"axis needs\n    {wanted}\n  and the device-to-device transfer guard disallows to "
            "move it.",
            fix="put it there before the call with jax.device_put(x, sharding), or allow "
            "device-to-device transfers around the call.",
        )
