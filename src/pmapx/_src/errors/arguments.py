"""Mistakes in the arguments of a call."""

from __future__ import annotations

from typing import Any

from pmapx._src.errors.base import PmapxError


class AxisSizeMismatch(PmapxError, ValueError, code="PMX101"):
    """Two arguments disagree about the size of the mapped axis.

    Every mapped argument is split along its mapped axis, one slice a device, so the sizes along
    those axes must be equal. An argument that all devices share is marked with None in
    ``in_axes``; keyword arguments are always mapped along axis 0.
    """

    def __init__(
        self,
        function: str,
        first: str,
        first_shape: str,
        first_axis: int,
        first_size: int,
        second: str,
        second_shape: str,
        second_axis: int,
        second_size: int,
    ) -> None:
        super().__init__(
            f"{function}: pmap got inconsistent sizes for array axes to be mapped:\n"
            f"    {first} is {first_shape}, which has size {first_size} along axis {first_axis}\n"
            f"    {second} is {second_shape}, which has size {second_size} along axis "
            f"{second_axis}",
            fix="give both the same size along their mapped axes, or pass None in in_axes for "
            "the one that every device should see whole.",
        )


class RankTooLow(PmapxError, ValueError, code="PMX102"):
    """An argument has fewer dimensions than its mapped axis needs.

    ``in_axes=k`` splits an argument along its axis ``k``, so it needs at least ``k + 1``
    dimensions (or ``-k`` for a negative ``k``).
    """

    def __init__(self, function: str, argument: str, shape: str, rank: int, axis: int) -> None:
        super().__init__(
            f"{function} was asked to map {argument} along axis {axis}, but it is {shape}, of "
            f"rank {rank}; its rank should be at least {axis + 1 if axis >= 0 else -axis}.",
            fix="change in_axes for this argument, or pass an array that has that axis.",
        )


class ScalarMapped(PmapxError, ValueError, code="PMX103"):
    """A scalar stands where an array is mapped.

    A scalar has no axis to split over the devices. If every device should get the same value,
    say so with None in ``in_axes``; if it is a setting that the function branches on, name it in
    ``static_broadcasted_argnums``. Keyword arguments are always mapped along axis 0.
    """

    def __init__(self, function: str, argument: str, shape: str, axis: int, keyword: bool) -> None:
        fix = (
            "pass it positionally with None in in_axes, or bind it first with functools.partial."
            if keyword
            else "pass None for it in in_axes, or name it in static_broadcasted_argnums."
        )
        super().__init__(
            f"{function} was asked to map {argument} along axis {axis}, but it is a scalar, "
            f"{shape}, of rank 0.",
            fix=fix,
        )


class NotAnArray(PmapxError, TypeError, code="PMX104"):
    """An argument is not something that JAX can put on a device.

    Arguments are arrays, scalars, or pytrees of them. Strings, functions and objects of your own
    are not, unless they are registered as pytrees; pass them as static arguments.
    """

    def __init__(self, function: str, argument: str, value: Any) -> None:
        text = repr(value)
        shown = text if len(text) <= 60 else text[:57] + "..."
        dtype = getattr(value, "dtype", None)
        lacks = (
            f"it has no shape and no axis, being of type "
            f"{type(value).__module__}.{type(value).__qualname__}"
            if dtype is None
            else f"JAX has no arrays of dtype {dtype}, whatever their shape and axis"
        )
        super().__init__(
            f"{function} cannot map {argument}: {shown} is not a valid JAX type; {lacks}.",
            fix="name its position in static_broadcasted_argnums (it must be hashable), close "
            "over it, or register its type as a pytree."
            if dtype is None
            else "convert it to numbers of the machine's own byte order, for example with "
            "x.astype('float32'), or encode it.",
        )


class InAxesNotPrefix(PmapxError, ValueError, code="PMX105"):
    """in_axes does not fit the arguments.

    ``in_axes`` is a tree prefix of the tuple of positional arguments: one entry an argument, each
    an integer, None, or a container shaped like the beginning of that argument's own tree.
    ``in_axes=(0, {"w": None, "b": 0})`` fits ``f(x, {"w": ..., "b": ...})``. Keyword arguments
    are no part of it: each is mapped along its leading axis.
    """

    def __init__(self, function: str, argument: str, difference: str, has_keywords: bool) -> None:
        keywords = (
            "\n\nSome arguments were passed by keyword. They are not compared with `in_axes`: "
            "each argument passed by keyword is mapped over its leading axis."
            if has_keywords
            else ""
        )
        super().__init__(
            f"{function}: pmap in_axes does not fit {argument}.\n{difference}\n\n"
            "The 'full pytree' here is the tuple of arguments passed positionally to the pmapped "
            "function, and the value of `in_axes` must be a tree prefix of that tuple."
            f"{keywords}",
            fix="make in_axes a tuple with one entry per positional argument; an int or None "
            "stands for a whole argument.",
        )


class OutAxesNotPrefix(PmapxError, ValueError, code="PMX106"):
    """out_axes does not fit what the function returned.

    ``out_axes`` is a tree prefix of the function's result, as ``in_axes`` is of its arguments.
    """

    def __init__(self, function: str, difference: str) -> None:
        super().__init__(
            f"{function}: pmap out_axes is not a prefix of the result.\n{difference}",
            fix="shape out_axes like the result; an int or None stands for a whole subtree.",
        )


class OutAxisOutOfRange(PmapxError, ValueError, code="PMX107"):
    """An output has no place for its mapped axis.

    The mapped axis is inserted into the result at ``out_axes``: an output of rank ``r`` has
    ``r + 1`` places for it, 0 to ``r`` (or ``-1`` to ``-r - 1``, counted from the end).
    """

    def __init__(self, function: str, output: str, shape: str, rank: int, axis: int) -> None:
        super().__init__(
            f"{function} was asked to put the mapped axis at out_axes={axis} of {output}, but on "
            f"each device it is {shape}, of rank {rank}.",
            fix=f"choose an axis from {-rank - 1} to {rank} for this output, or None.",
        )


class NothingMapped(PmapxError, ValueError, code="PMX108"):
    """Nothing says how large the mapped axis is.

    The size of the mapped axis is read off the first argument that has one. When no argument is
    mapped (all are None in ``in_axes``, or there are none) it must be given as ``axis_size``.
    """

    def __init__(self, function: str) -> None:
        super().__init__(
            f"{function}: pmap requires at least one argument with a mapped axis, or axis_size; "
            "no argument has a leaf that in_axes maps, so no shape tells the axis size.",
            fix="map at least one argument in in_axes, or pass axis_size=n to pmap.",
        )


class AxisSizeDisagrees(PmapxError, ValueError, code="PMX109"):
    """axis_size is not the size that the arguments have.

    ``axis_size`` is the size of the mapped axis over all processes. In one process it must equal
    the arguments' size along it; usually it can be left out.
    """

    def __init__(
        self, function: str, axis_size: int, argument: str, shape: str, axis: int, size: int
    ) -> None:
        super().__init__(
            f"{function}: Specified axis_size {axis_size} doesn't match received axis_size {size}: "
            f"{argument} is {shape}, which has size {size} along axis {axis}.",
            fix="leave axis_size out, or pass arguments of that size.",
        )


class UnhashableStatic(PmapxError, ValueError, code="PMX110"):
    """A static argument has no hash.

    The compiled program depends on the value of a static argument, so programs are kept in a
    table by it: it needs ``__hash__`` and ``__eq__``. Arrays, lists and dicts have none.
    """

    def __init__(self, function: str, argument: str, value: Any) -> None:
        text = repr(value)
        shown = text if len(text) <= 60 else text[:57] + "..."
        super().__init__(
            f"Non-hashable static arguments are not supported: {function} got {shown} of type "
            f"{type(value).__name__} as static {argument}, which has no hash and no mapped axis.",
            fix="pass a tuple or a frozen dataclass, or take the argument out of "
            "static_broadcasted_argnums and map it (in_axes=None gives it to all devices).",
        )


class StaticArgumentMissing(PmapxError, ValueError, code="PMX111"):
    """A static argument was not passed by position.

    ``static_broadcasted_argnums`` counts positional arguments, so those must be there at each
    call; defaults and keywords do not fill them.
    """

    def __init__(
        self,
        function: str,
        static: tuple[int, ...],
        given: int,
        missing: str,
        *,
        by_keyword: bool = False,
    ) -> None:
        passed = "was passed by keyword" if by_keyword else "is missing"
        super().__init__(
            f"{function}: pmapped function has static_broadcasted_argnums={static} but was called "
            f"with only {given} positional argument{'' if given == 1 else 's'}: static {missing} "
            f"{passed}. Static arguments, which have no axis to map, must be passed positionally.",
            fix="pass all static broadcasted arguments positionally, those with a default too.",
        )


class OutputNotAnArray(PmapxError, TypeError, code="PMX112"):
    """The function returned something that is not an array.

    What a mapped function returns lies on the devices, so every leaf of it must be an array or a
    number. Strings, None inside arrays, and objects of your own cannot come out.
    """

    def __init__(self, function: str, output: str, value: Any) -> None:
        text = repr(value)
        shown = text if len(text) <= 60 else text[:57] + "..."
        super().__init__(
            f"{function} returned {shown} of type {type(value).__name__} as {output}, which is "
            "not a valid JAX type: it has no shape and no axis.",
            fix="return arrays and numbers only; keep other values outside the mapped function.",
        )


class EmptyAxis(PmapxError, ValueError, code="PMX113"):
    """The mapped axis has no elements.

    A map over nothing would run on no device. It usually means an empty batch or a mistaken
    reshape.
    """

    def __init__(self, function: str, argument: str, shape: str, axis: int) -> None:
        super().__init__(
            f"{function}: {argument} is {shape}, whose mapped axis {axis} has size 0.",
            fix="pass at least one element along the mapped axis.",
        )


class CompiledForAnotherTree(PmapxError, TypeError, code="PMX114"):
    """A compiled function was called with arguments of another structure.

    What ``lower(...).compile()`` returns is a program for one pytree structure of its arguments,
    and static arguments, which are part of the program, are not passed again.
    """

    def __init__(self, function: str, difference: str) -> None:
        super().__init__(
            f"{function}: Function compiled with input pytree does not match the input pytree it "
            f"was called with.\n{difference}",
            fix="pass the structure that it was lowered for, without static arguments, or lower "
            "it again.",
        )
