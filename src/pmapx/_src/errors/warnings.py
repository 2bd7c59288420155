"""Warnings: the call went on."""

from __future__ import annotations

from collections.abc import Hashable

from pmapx._src.errors.base import PmapxWarning


class InputMoved(PmapxWarning, code="PMX901"):
    """An input was moved, and reshard="warn" asks to be told.

    The warning comes once for each argument and placement; ``f.cache_info().moved`` counts all.
    """

    def __init__(self, function: str, argument: str, shape: str, reason: str) -> None:
        super().__init__(
            f"{function} moved {argument}, {shape}, to its mapped axis' devices: {reason}.",
            fix="put it there before the call with jax.device_put(x, sharding).",
        )


class DonationUnused(PmapxWarning, code="PMX902"):
    """A donated argument could not be reused.

    A donated buffer is reused for an output of the same shape, type and placement. Without such
    an output the donation saves nothing, though the argument may still be deleted.
    """

    def __init__(self, function: str, argument: str, shape: str, axis: int | None) -> None:
        super().__init__(
            f"{function}: donated {argument}, {shape} mapped along axis {axis}, could not be "
            "used: no output that is still free has its shape, type and axis.",
            fix="take it out of donate_argnums, or return an updated value of the same shape.",
        )


class VaryingOutput(PmapxWarning, code="PMX903", is_advice=True):
    """out_axes=None was given for a value that differs between devices.

    ``out_axes=None`` says that an output is the same on every device, so one copy is returned:
    that of the first device. For this output the program does not make it so, and the other
    devices' values are lost without a word.
    """

    def __init__(self, function: str, output: str, axis_name: Hashable, since: str | None) -> None:
        origin = f" It varies since {since}." if since else ""
        super().__init__(
            f"{function}: {output} has out_axes=None, but may differ between devices along axis "
            f"{axis_name!r}; the first device's value is returned.{origin}",
            fix="reduce it first, for example with jax.lax.pmean(x, axis_name), or use "
            "out_axes=0 for it.",
        )


class UnevenOversubscription(PmapxWarning, code="PMX904"):
    """The mapped axis does not divide evenly over the devices.

    With ``oversubscribe=True`` each device runs the same number of elements, so the largest
    number of devices that divides the axis is used and the others stay idle.
    """

    def __init__(self, function: str, argument: str, size: int, used: int, available: int) -> None:
        super().__init__(
            f"{function}: {argument} has size {size} along the mapped axis, which {available} "
            f"devices cannot share evenly; {used} of them run {size // used} elements each.",
            fix=f"use a multiple of {available} elements to keep all devices busy.",
        )


class RemovedName(PmapxWarning, code="PMX905", is_advice=True):
    """Code mentions something that JAX removed with the original pmap.

    It is a flag that has nothing to choose between any more, or ``PmapSharding``, which no array
    has. Under ``pmapx.install()`` the mention is harmless, and can be deleted.
    """

    def __init__(self, name: str, became: str) -> None:
        fix = "delete the mention"
        super().__init__(f"{name} was removed from JAX: {became}.", fix=fix)
        # On one line: it comes from the middle of a program that runs on.
        self.args = (f"{name} was removed from JAX: {became}; fix: {fix} ({self.code})",)


class DonatedInputMoved(PmapxWarning, code="PMX911", is_advice=True):
    """A donated argument had to be moved before it could be reused.

    The move takes memory for a part of the argument at a time, and time at every call. In a
    training loop the results of one call are in their place for the next.
    """

    def __init__(self, function: str, argument: str, shape: str) -> None:
        super().__init__(
            f"{function} moved donated {argument}, {shape}, to its mapped axis' devices, part by "
            "part; each part was freed once it had moved.",
            fix="put it there before the call, for example with jax.device_put(x, sharding).",
        )


class FastPathUnavailable(PmapxWarning, code="PMX913"):
    """This release of JAX changed a private part that pmapx speeds calls up with.

    pmapx uses a few parts of ``jax._src``, such as the C++ dispatch behind ``jax.jit``. Each is
    probed at its first use: a tiny program runs through it and through public JAX, and the
    results are compared. This one raised or gave something else, so pmapx uses public JAX in its
    place for the rest of the process. Results are the same; ``pmapx info`` lists what is in use.
    """

    def __init__(self, piece: str, reason: str, cost: str, release: str) -> None:
        super().__init__(
            f"JAX {release} does not have what pmapx expects of its {piece} ({reason}); pmapx uses "
            f"public JAX instead: results are the same, but {cost}.",
            fix="upgrade pmapx, or report this with the output of `pmapx info`; with "
            "PMAPX_PUBLIC_ONLY=1 set, pmapx uses public JAX without this warning.",
        )
