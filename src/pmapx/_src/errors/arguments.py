"""Mistakes in the arguments or outputs of a call of a pmapped function."""

from typing import Any

from pmapx._src.errors.base import PmapxError, shown


class AxisSizeMismatch(PmapxError, ValueError, code="PMX101"):
    """Mapped arguments have different sizes along the mapped axis.

    Every mapped argument is sharded along its mapped axis, one slice per device, so all sizes
    along it must be equal. Use None in ``in_axes`` for an argument that is replicated on all
    devices. Keyword arguments are always mapped along axis 0.
    """

    def __init__(self, function: str, *arguments: tuple[str, str, int, int]) -> None:
        sizes = [
            f"\n    {argument} is {shape}, which has size {size} along axis {axis}"
            for argument, shape, axis, size in arguments
        ]
        super().__init__(
            f"{function}: pmap got inconsistent sizes for array axes to be mapped:{''.join(sizes)}",
            fix="give both the same size along their mapped axes, or use None in in_axes for the "
            "one that is replicated on all devices.",
        )


class RankTooLow(PmapxError, ValueError, code="PMX102"):
    """An argument has too few dimensions for its mapped axis.

    ``in_axes=k`` maps an argument along its axis ``k``, which needs at least ``k + 1`` dimensions
    (``-k`` for a negative ``k``).
    """

    def __init__(self, function: str, argument: str, shape: str, rank: int, axis: int) -> None:
        super().__init__(
            f"{function} was requested to map {argument} along axis {axis}, which implies that its "
            f"rank should be at least {axis + 1 if axis >= 0 else -axis}, but it is {shape}, of "
            f"rank {rank}.",
            fix="change in_axes for this argument, or pass an array that has this axis.",
        )


class ScalarMapped(PmapxError, ValueError, code="PMX103"):
    """A mapped argument is a scalar.

    A scalar has no axis to map. If all devices should get the same value, use None in ``in_axes``;
    if the function branches on it in Python, list it in ``static_broadcasted_argnums``. Keyword
    arguments are always mapped along axis 0.
    """

    def __init__(self, function: str, argument: str, shape: str, axis: int, keyword: bool) -> None:
        super().__init__(
            f"{function} was requested to map {argument} along axis {axis}, but it is a scalar, "
            f"{shape}.",
            fix="pass it positionally with None in in_axes, or bind it first with "
            "functools.partial."
            if keyword
            else "use None for it in in_axes, or list it in static_broadcasted_argnums.",
        )


class NotAnArray(PmapxError, TypeError, code="PMX104"):
    """An argument is not a valid JAX type.

    Arguments are arrays, scalars, or pytrees of them. Strings, functions and instances of
    unregistered classes are not; pass them as static arguments.
    """

    def __init__(self, function: str, argument: str, value: Any) -> None:
        dtype = getattr(value, "dtype", None)
        if dtype is None:
            kind = f"of type {type(value).__module__}.{type(value).__qualname__}"
            fix = (
                "list its position in static_broadcasted_argnums (it must be hashable), close over "
                "it, or register its type as a pytree."
            )
        else:
            kind = f"of dtype {dtype}, which JAX does not support"
            fix = (
                "convert it to a numeric dtype in native byte order, for example with "
                "x.astype('float32')."
            )
        super().__init__(
            f"{function} cannot map {argument}: {shown(value)} is not a valid JAX type; it is "
            f"{kind}.",
            fix=fix,
        )


class InAxesNotPrefix(PmapxError, ValueError, code="PMX105"):
    """in_axes does not match the arguments.

    ``in_axes`` is a tree prefix of the tuple of positional arguments: one entry per argument, each
    an integer, None, or a container that matches the top of that argument's tree.
    ``in_axes=(0, {"w": None, "b": 0})`` matches ``f(x, {"w": ..., "b": ...})``. It does not cover
    keyword arguments, which are mapped along axis 0.
    """

    def __init__(self, function: str, argument: str, difference: str, has_keywords: bool) -> None:
        keywords = (
            "\n\nSome arguments were passed by keyword. They are not compared with `in_axes`: "
            "each argument passed by keyword is mapped over its leading axis."
            if has_keywords
            else ""
        )
        super().__init__(
            f"{function}: pmap in_axes does not match {argument}.\n{difference}\n\n"
            "The 'full pytree' here is the tuple of arguments passed positionally to the pmapped "
            "function, and the value of `in_axes` must be a tree prefix of that tuple."
            f"{keywords}",
            fix="make in_axes a tuple with one entry per positional argument; an int or None "
            "applies to all leaves of an argument.",
        )


class OutAxesNotPrefix(PmapxError, ValueError, code="PMX106"):
    """out_axes does not match the output.

    ``out_axes`` is a tree prefix of the function's output, as ``in_axes`` is of its arguments.
    """

    def __init__(self, function: str, difference: str) -> None:
        super().__init__(
            f"{function}: pmap out_axes is not a tree prefix of the output.\n{difference}",
            fix="give out_axes the structure of the output; an int or None applies to all leaves "
            "of a subtree.",
        )


class OutAxisOutOfRange(PmapxError, ValueError, code="PMX107"):
    """out_axes is out of range for an output.

    The mapped axis is inserted into the output at ``out_axes``. For an output of rank ``r``, valid
    positions are 0 to ``r``, or ``-1`` to ``-r - 1`` counted from the end.
    """

    def __init__(self, function: str, output: str, shape: str, rank: int, axis: int) -> None:
        super().__init__(
            f"{function}: out_axes={axis} is out of range for {output}, which is {shape} on each "
            f"device, of rank {rank}.",
            fix=f"use an axis from {-rank - 1} to {rank} for this output, or None.",
        )


class NothingMapped(PmapxError, ValueError, code="PMX108"):
    """The size of the mapped axis is unknown.

    It is inferred from the mapped arguments. If none is mapped (all are None in ``in_axes``, or
    there are no arguments), pass ``axis_size``.
    """

    def __init__(self, function: str) -> None:
        super().__init__(
            f"{function}: pmap requires at least one argument with a mapped axis, or axis_size; "
            "in_axes maps no leaf of the arguments, so the axis size cannot be inferred.",
            fix="map at least one argument in in_axes, or pass axis_size=n to pmap.",
        )


class AxisSizeOptionMismatch(PmapxError, ValueError, code="PMX109"):
    """axis_size differs from the size of the arguments.

    ``axis_size`` is the global size of the mapped axis, over all processes. In a single process it
    must equal the arguments' size along the mapped axis, and can usually be omitted.
    """

    def __init__(
        self, function: str, axis_size: int, argument: str, shape: str, axis: int, size: int
    ) -> None:
        super().__init__(
            f"{function}: Specified axis_size {axis_size} doesn't match received axis_size {size}: "
            f"{argument} is {shape}, which has size {size} along axis {axis}.",
            fix=f"omit axis_size, or pass arguments of size {axis_size}.",
        )


class UnhashableStatic(PmapxError, ValueError, code="PMX110"):
    """A static argument is not hashable.

    The values of static arguments are part of the cache key of the compiled program, so they need
    ``__hash__`` and ``__eq__``. Arrays, lists and dicts are not hashable.
    """

    def __init__(self, function: str, argument: str, value: Any) -> None:
        super().__init__(
            f"Non-hashable static arguments are not supported: {function} got {shown(value)} of "
            f"type {type(value).__name__} as static {argument}, which is not hashable.",
            fix="pass a tuple or a frozen dataclass, or remove the argument from "
            "static_broadcasted_argnums and use in_axes=None for it.",
        )


class StaticArgumentMissing(PmapxError, ValueError, code="PMX111"):
    """A static argument was not passed positionally.

    ``static_broadcasted_argnums`` refers to positional arguments, so every call must pass them
    positionally; defaults and keywords do not count.
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
            f"{passed}. Static arguments must be passed positionally.",
            fix="pass all static broadcasted arguments positionally, including those with a "
            "default.",
        )


class OutputNotAnArray(PmapxError, TypeError, code="PMX112"):
    """An output is not a valid JAX type.

    Every leaf of a pmapped function's output must be an array or a number. Strings and instances
    of unregistered classes cannot be returned.
    """

    def __init__(self, function: str, output: str, value: Any) -> None:
        super().__init__(
            f"{function} returned {shown(value)} of type {type(value).__name__} as {output}, which "
            "is not a valid JAX type.",
            fix="return only arrays and numbers; keep other values outside the pmapped function.",
        )


class EmptyAxis(PmapxError, ValueError, code="PMX113"):
    """The mapped axis has size 0.

    There would be nothing to run on any device. The usual cause is an empty batch or a wrong
    reshape.
    """

    def __init__(self, function: str, argument: str, shape: str, axis: int) -> None:
        super().__init__(
            f"{function}: {argument} is {shape}, whose mapped axis {axis} has size 0.",
            fix="pass arguments of size 1 or more along the mapped axis.",
        )


class CompiledForAnotherTree(PmapxError, TypeError, code="PMX114"):
    """A compiled function was called with arguments of another pytree structure.

    ``lower(...).compile()`` returns a program for one pytree structure of its arguments. Static
    arguments are compiled into the program and are not passed again.
    """

    def __init__(self, function: str, difference: str) -> None:
        super().__init__(
            f"{function}: Function compiled with input pytree does not match the input pytree it "
            f"was called with.\n{difference}",
            fix="pass the structure it was lowered for, without static arguments, or lower it "
            "again.",
        )
