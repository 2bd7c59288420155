"""Warnings: the call continues."""

from collections.abc import Hashable

from pmapx._src.errors.base import PmapxWarning


class InputResharded(PmapxWarning, code="PMX901"):
    """An input was resharded, and reshard="warn" reports it.

    The warning is issued once per argument and placement; ``f.cache_info().moved`` counts every
    transfer.
    """

    def __init__(self, function: str, argument: str, shape: str, reason: str) -> None:
        super().__init__(
            f"{function} transferred {argument}, {shape}, to the devices of its mapped axis: "
            f"{reason}.",
            fix="place it before the call with jax.device_put(x, sharding).",
        )


class DonationUnused(PmapxWarning, code="PMX902"):
    """A donated argument was not usable.

    The buffer of a donated argument is reused for an output of the same shape, dtype and sharding.
    Without such an output the donation saves no memory, and the argument may still be deleted.
    """

    def __init__(self, function: str, argument: str, shape: str, axis: int | None) -> None:
        super().__init__(
            f"{function}: donated {argument}, {shape} mapped along axis {axis}, was not usable: no "
            "remaining output has its shape, dtype and axis.",
            fix="remove it from donate_argnums, or return an updated value of the same shape.",
        )


class VaryingOutput(PmapxWarning, code="PMX903", is_advice=True):
    """An output with out_axes=None varies between devices.

    ``out_axes=None`` asserts that an output is equal on all devices, and returns the copy of the
    first one. This output may vary, in which case the values on the other devices are silently
    dropped.
    """

    def __init__(self, function: str, output: str, axis_name: Hashable, since: str | None) -> None:
        origin = f" It varies since {since}." if since else ""
        super().__init__(
            f"{function}: {output} has out_axes=None, but may vary between devices along axis "
            f"{axis_name!r}; the first device's value is returned.{origin}",
            fix="reduce it first, for example with jax.lax.pmean(x, axis_name), or use "
            "out_axes=0 for it.",
        )


class UnevenOversubscription(PmapxWarning, code="PMX904"):
    """The size of the mapped axis is not divisible by the number of devices.

    With ``oversubscribe=True``, each device runs the same number of indices of the mapped axis.
    pmapx uses the largest number of devices that divides the axis; the others stay idle.
    """

    def __init__(self, function: str, argument: str, size: int, used: int, available: int) -> None:
        super().__init__(
            f"{function}: {argument} has size {size} along the mapped axis, which is not divisible "
            f"by {available} devices; it runs on {used}, {size // used} indices each.",
            fix=f"use a multiple of {available} along the mapped axis to keep all devices busy.",
        )


class RemovedName(PmapxWarning, code="PMX905", is_advice=True):
    """The program uses a name that JAX removed with the original pmap.

    It is a flag that no longer has any effect, or ``PmapSharding``, which no array has any more.
    Under ``pmapx.install()`` the use is harmless and can be deleted.
    """

    def __init__(self, name: str, became: str) -> None:
        problem, fix = f"{name} was removed from JAX: {became}", "delete this use"
        super().__init__(f"{problem}.", fix=fix)
        # A single line, since the program continues.
        self.args = (f"{problem}; fix: {fix} ({self.code})",)


class DonatedInputResharded(PmapxWarning, code="PMX911", is_advice=True):
    """A donated argument was resharded before its buffer could be reused.

    The transfer needs memory for one part of the argument at a time, and time at every call. In a
    training loop, the outputs of one call are already correctly placed for the next.
    """

    def __init__(self, function: str, argument: str, shape: str) -> None:
        super().__init__(
            f"{function} transferred donated {argument}, {shape}, to the devices of its mapped "
            "axis, one part at a time; each part was freed after its transfer.",
            fix="place it before the call, for example with jax.device_put(x, sharding).",
        )


class FastPathUnavailable(PmapxWarning, code="PMX913"):
    """This release of JAX changed a private API that pmapx uses for speed.

    pmapx uses a few parts of ``jax._src``, such as the C++ dispatch behind ``jax.jit``. Each is
    probed at its first use: a tiny program runs through it and through public JAX, and the results
    are compared. This one raised or differed, so pmapx uses public JAX instead for the rest of the
    process. Results are the same; ``pmapx info`` lists what is in use.
    """

    def __init__(self, piece: str, reason: str, cost: str, release: str) -> None:
        super().__init__(
            f"pmapx cannot use the {piece} of JAX {release} ({reason}) and uses public JAX "
            f"instead: results are the same, but {cost}.",
            fix="upgrade pmapx, or report this with the output of `pmapx info`; set "
            "PMAPX_PUBLIC_ONLY=1 to use public JAX without this warning.",
        )
