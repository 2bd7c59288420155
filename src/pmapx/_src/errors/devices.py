"""Mapped axes that exceed the devices, and inputs that may not be resharded."""

import math
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

from pmapx._src.errors.base import PmapxError


class NotEnoughDevices(PmapxError, ValueError, code="PMX201"):
    """The mapped axis is larger than the number of devices.

    pmap runs one index of the mapped axis on each device. With ``oversubscribe=True``, each device
    runs several, and collectives still reduce over all of them. Alternatively, reshape
    ``(16, ...)`` to ``(8, 2, ...)`` and handle the second axis inside, for example with
    ``jax.vmap``.
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
    """Nested pmaps need more devices than are available.

    Each index of an inner pmap runs on its own device for each index of the outer one, so the
    product of the sizes must not exceed the number of devices: those that JAX has, or those passed
    as ``devices``.
    """

    def __init__(
        self,
        function: str,
        named_sizes: Sequence[tuple[Hashable | None, int]],
        available: int,
        *,
        were_passed: bool = False,
    ) -> None:
        total = math.prod(size for _, size in named_sizes)
        problem = (
            f"compiling computation that requires {total} logical devices, but only {available} "
            f"XLA devices are available (num_replicas={total}), due to nested pmapped functions."
        )
        if were_passed:
            problem = (
                f"pmapped function requires {total} local devices to run due to nested pmapped or "
                f"other parallel functions, but only {available} are available."
            )
        nesting = " x ".join(
            f"{'unnamed' if name is None else name!r} ({size})" for name, size in named_sizes
        )
        super().__init__(
            f"{function}: {problem}\n"
            f"    nested mapped axes, outermost first, with sizes from the argument shapes: "
            f"{nesting}",
            fix="map smaller axes, use jax.vmap for the inner one, or pass oversubscribe=True to "
            "the outermost pmap.",
        )


class NestedDevices(PmapxError, ValueError, code="PMX203"):
    """An inner pmap has an explicit devices argument.

    The outermost pmap determines the devices; the inner ones subdivide them.
    """

    def __init__(self, function: str, axis_name: Hashable, outer: Hashable) -> None:
        super().__init__(
            f"Nested pmap with explicit devices argument. {function}, mapped over axis "
            f"{axis_name!r}, is called inside the pmap over axis {outer!r}, which determines the "
            "devices.",
            fix="pass the argument 'devices' only to the outermost pmap.",
        )


class _Misplaced(PmapxError, ValueError):
    reason: ClassVar[str]
    remedy: ClassVar[str]

    def __init__(self, function: str, argument: str, shape: str, found: Any, wanted: Any) -> None:
        super().__init__(
            f"{function} got {argument}, {shape}, with sharding\n    {found}\n  but its mapped "
            f"axis needs\n    {wanted}\n  and {self.reason}.",
            fix=f"place it before the call with jax.device_put(x, sharding), or {self.remedy}.",
        )


class ReshardRefused(_Misplaced, code="PMX301"):
    """An input has another sharding, and reshard="error" does not allow resharding it.

    The default, ``reshard="allow"``, transfers such an input to the devices where the program
    needs it, as the original pmap did. ``reshard="error"`` makes every such transfer an error.
    """

    reason = "reshard='error' does not allow resharding it"
    remedy = "pass reshard='allow' to pmap"


class TransferDisallowed(_Misplaced, code="PMX302"):
    """An input has another sharding, and the transfer guard disallows transferring it.

    Under ``jax.transfer_guard("disallow")`` only explicit transfers are allowed, and resharding an
    argument of a pmapped function is implicit. Correctly placed inputs are accepted.
    """

    reason = "the device-to-device transfer guard disallows transferring it"
    remedy = "allow device-to-device transfers around the call"
