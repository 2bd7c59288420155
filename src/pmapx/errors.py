"""Every error and warning that pmapx raises: its type, its code, its words and its fix.

An error is a class here and nowhere else. Its docstring is the page that
``pmapx explain CODE`` prints; its ``__init__`` takes the facts and writes the message, so the
place that finds a mistake hands over facts and no prose. Each class also derives from what JAX
raises for the same mistake, so that existing ``except`` clauses keep working.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import jax

CODES: dict[str, type[PmapxError] | type[PmapxWarning]] = {}


def _register(cls: type, code: str) -> None:
    if not code:
        return
    if code in CODES:
        raise AssertionError(f"{code} is taken by {CODES[code].__name__}")
    CODES[code] = cls


def _compose(code: str, problem: str, fix: str) -> str:
    return f"{problem}\n  fix: {fix}\n  code: {code} (`pmapx explain {code}` says more)"


def explain(code: str) -> str:
    """Returns the page of an error or warning code.

    >>> print(explain("PMX108").splitlines()[0])
    PMX108 NothingMapped: nothing says how large the mapped axis is.
    """
    cls = CODES[code.upper()]
    page = inspect.cleandoc(cls.__doc__ or "")
    return f"{cls.code} {cls.__name__}: {page[0].lower()}{page[1:]}"


def warn(warning: PmapxWarning) -> None:
    """Issues a warning at the line of the user's that led here, not at one of pmapx or JAX."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level + 1)


def _is_internal(filename: str) -> bool:
    return filename.startswith(_INTERNAL) or filename.startswith("<")


_INTERNAL = tuple(
    os.path.dirname(os.path.abspath(module)) + os.sep for module in (__file__, jax.__file__)
)


class PmapxError(Exception):
    """Base of all errors of pmapx; catch it to tell them from JAX's own.

    >>> import pmapx
    >>> try:
    ...     pmapx.pmap(lambda x: x)(3.0)
    ... except pmapx.PmapxError as error:
    ...     print(error.code, isinstance(error, ValueError))
    PMX103 True
    """

    code: ClassVar[str] = ""

    def __init_subclass__(cls, code: str = "") -> None:
        """Puts the class into ``CODES`` under its code."""
        super().__init_subclass__()
        cls.code = code
        _register(cls, code)

    def __init__(self, problem: str, *, fix: str) -> None:
        """Composes the message from what is wrong and how to mend it."""
        super().__init__(_compose(self.code, problem, fix))


class PmapxWarning(UserWarning):
    """Base of all warnings of pmapx; filter on it to silence or to raise them.

    >>> import warnings, pmapx
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", pmapx.PmapxWarning)
    """

    code: ClassVar[str] = ""

    def __init_subclass__(cls, code: str = "") -> None:
        """Puts the class into ``CODES`` under its code."""
        super().__init_subclass__()
        cls.code = code
        _register(cls, code)

    def __init__(self, problem: str, *, fix: str) -> None:
        """Composes the message from what was noticed and how to mend it."""
        super().__init__(_compose(self.code, problem, fix))


def _sizes(named_sizes: Sequence[tuple[Hashable, int]]) -> str:
    return " x ".join(f"{name!r} ({size})" for name, size in named_sizes)


# When the pmapped function is made.


class NotCallable(PmapxError, TypeError, code="PMX001"):
    """What was given to pmap cannot be called.

    The first argument of ``pmap`` is the function to map. A common cause is a call too many:
    ``pmap(f(x))`` in place of ``pmap(f)(x)``, or a decorator that returned None.
    """

    def __init__(self, fun: Any) -> None:  # noqa: D107
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

    def __init__(self, which: str, axes: Any, leaf: Any) -> None:  # noqa: D107
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

    def __init__(  # noqa: D107
        self, option: str, value: Any, expected: str, function: str = "pmap"
    ) -> None:
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

    def __init__(self, function: str = "pmap") -> None:  # noqa: D107
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

    def __init__(  # noqa: D107
        self, device: Any, positions: Sequence[int], function: str = "pmap"
    ) -> None:
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

    def __init__(self, which: str, argnums: Any, problem: str) -> None:  # noqa: D107
        super().__init__(
            f"pmap got {which}={argnums!r}: {problem}.",
            fix=f"give {which} the positions of positional arguments, counted from 0.",
        )


# When it is called: the arguments.


class AxisSizeMismatch(PmapxError, ValueError, code="PMX101"):
    """Two arguments disagree about the size of the mapped axis.

    Every mapped argument is split along its mapped axis, one slice a device, so the sizes along
    those axes must be equal. An argument that all devices share is marked with None in
    ``in_axes``; keyword arguments are always mapped along axis 0.
    """

    def __init__(  # noqa: D107
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
            f"{function} got inconsistent sizes for array axes to be mapped:\n"
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

    def __init__(self, function: str, argument: str, shape: str, rank: int, axis: int) -> None:  # noqa: D107
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

    def __init__(self, function: str, argument: str, shape: str, axis: int, keyword: bool) -> None:  # noqa: D107
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

    def __init__(self, function: str, argument: str, value: Any) -> None:  # noqa: D107
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

    def __init__(  # noqa: D107
        self, function: str, argument: str, difference: str, has_keywords: bool
    ) -> None:
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

    def __init__(self, function: str, difference: str) -> None:  # noqa: D107
        super().__init__(
            f"{function}: pmap out_axes is not a prefix of the result.\n{difference}",
            fix="shape out_axes like the result; an int or None stands for a whole subtree.",
        )


class OutAxisOutOfRange(PmapxError, ValueError, code="PMX107"):
    """An output has no place for its mapped axis.

    The mapped axis is inserted into the result at ``out_axes``: an output of rank ``r`` has
    ``r + 1`` places for it, 0 to ``r`` (or ``-1`` to ``-r - 1``, counted from the end).
    """

    def __init__(self, function: str, output: str, shape: str, rank: int, axis: int) -> None:  # noqa: D107
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

    def __init__(self, function: str) -> None:  # noqa: D107
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

    def __init__(  # noqa: D107
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

    def __init__(self, function: str, argument: str, value: Any) -> None:  # noqa: D107
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

    def __init__(self, function: str, static: tuple[int, ...], given: int, missing: str) -> None:  # noqa: D107
        super().__init__(
            f"{function}: pmapped function has static_broadcasted_argnums={static} but was called "
            f"with only {given} positional argument{'' if given == 1 else 's'}: static {missing} "
            "is not there, nor has it an axis to map.",
            fix="pass all static broadcasted arguments positionally.",
        )


class OutputNotAnArray(PmapxError, TypeError, code="PMX112"):
    """The function returned something that is not an array.

    What a mapped function returns lies on the devices, so every leaf of it must be an array or a
    number. Strings, None inside arrays, and objects of your own cannot come out.
    """

    def __init__(self, function: str, output: str, value: Any) -> None:  # noqa: D107
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

    def __init__(self, function: str, argument: str, shape: str, axis: int) -> None:  # noqa: D107
        super().__init__(
            f"{function}: {argument} is {shape}, whose mapped axis {axis} has size 0.",
            fix="pass at least one element along the mapped axis.",
        )


# When it is called: the devices.


class TooManyElements(PmapxError, ValueError, code="PMX201"):
    """The mapped axis is larger than the number of devices.

    pmap runs one element of the mapped axis on each device. With ``oversubscribe=True`` each
    device runs several, collectives included; or reshape ``(16, ...)`` to ``(8, 2, ...)`` and
    handle the second axis inside, for example with ``jax.vmap``.
    """

    def __init__(  # noqa: D107
        self, function: str, argument: str, shape: str, axis: int, size: int, available: int
    ) -> None:
        super().__init__(
            f"{function} requires {size} logical devices, but only {available} XLA devices are "
            f"available: {argument} is {shape}, which has size {size} along mapped axis {axis}.",
            fix=f"pass oversubscribe=True to pmap, reshape to ({available}, ...), or run with "
            "more devices (XLA_FLAGS=--xla_force_host_platform_device_count=N on CPU).",
        )


class NestingTooLarge(PmapxError, ValueError, code="PMX202"):
    """Nested pmaps need more devices than there are.

    A pmap inside a pmap runs each inner element of each outer element on a device of its own, so
    the product of the sizes must not exceed the number of devices.
    """

    def __init__(  # noqa: D107
        self, function: str, named_sizes: Sequence[tuple[Hashable, int]], available: int
    ) -> None:
        total = 1
        for _, size in named_sizes:
            total *= size
        super().__init__(
            f"{function}: pmapped function requires {total} local devices to run due to nested "
            f"pmapped or other parallel functions, but only {available} are available.\n"
            f"    nesting of mapped axes, outermost first: {_sizes(named_sizes)}; the argument "
            "shapes give these sizes",
            fix="map fewer elements, use jax.vmap for the inner map, or pass oversubscribe=True "
            "to the outermost pmap.",
        )


class NestedDevices(PmapxError, ValueError, code="PMX203"):
    """An inner pmap names its own devices.

    The outermost pmap decides on the devices; the inner ones share them out.
    """

    def __init__(self, function: str, axis_name: Hashable, outer: Hashable) -> None:  # noqa: D107
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

    def __init__(self, function: str, argument: str, shape: str, found: Any, wanted: Any) -> None:  # noqa: D107
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

    def __init__(self, function: str, argument: str, shape: str, found: Any, wanted: Any) -> None:  # noqa: D107
        super().__init__(
            f"{function} got {argument}, {shape}, with sharding\n    {found}\n  but its mapped "
            f"axis needs\n    {wanted}\n  and the device-to-device transfer guard disallows to "
            "move it.",
            fix="put it there before the call with jax.device_put(x, sharding), or allow "
            "device-to-device transfers around the call.",
        )


# Arrays: made, read and taken apart.


class ShardsNotASequence(PmapxError, TypeError, code="PMX121"):
    """device_put_sharded was given something else than a list of shards.

    Its first argument is a list or tuple with one shard a device, each an array or a pytree of
    arrays. An array that is stacked already needs no taking apart.
    """

    def __init__(self, function: str, shards: Any) -> None:  # noqa: D107
        shape = f" of shape {tuple(shards.shape)}" if hasattr(shards, "shape") else ""
        super().__init__(
            f"{function} takes a sequence of shards, one a device, as argument 0 'shards', but got "
            f"{type(shards).__module__}.{type(shards).__qualname__}{shape}, which has a leading "
            "axis at best.",
            fix="pass a list with one shard per device; put a stacked array with "
            "pmapx.prefetch, pmapx.shard_batch or jax.device_put(x, sharding).",
        )


class ShardCountMismatch(PmapxError, ValueError, code="PMX122"):
    """The number of shards is not the number of devices.

    ``device_put_sharded(shards, devices)`` puts shard ``i`` on device ``i``.
    """

    def __init__(self, function: str, shards: int, devices: int) -> None:  # noqa: D107
        super().__init__(
            f"{function} got len(shards) = {shards} for argument 0 'shards', but len(devices) = "
            f"{devices}: the leading axis of the result has one row a device.",
            fix="pass as many shards as devices.",
        )


class ShardsDisagree(PmapxError, ValueError, code="PMX123"):
    """Two shards have another structure, shape or type.

    Shards become rows of one array, so each leaf has the same shape and type in all of them.
    """

    def __init__(self, function: str, first: str, is_first: str, other: str, is_other: str) -> None:  # noqa: D107
        super().__init__(
            f"the shards passed to {function} must have consistent structure, shape and dtype to "
            f"be rows of one array along axis 0:\n    {first} is {is_first}\n    {other} is "
            f"{is_other}",
            fix="make the shards alike, padding them where they are ragged.",
        )


class NotConcrete(PmapxError, TypeError, code="PMX124"):
    """A traced value stands where an array is needed.

    Placing an array on devices and reading one happens outside of traced functions: inside
    ``jit``, ``grad`` or ``pmap`` there is no array yet, only its shape and type.
    """

    def __init__(self, function: str, leaf: str, shape: str) -> None:  # noqa: D107
        super().__init__(
            f"{function} needs a concrete array, but {leaf} is a tracer, {shape}: it has an axis "
            "and no place on devices yet.",
            fix="call it outside of the traced function, and pass the result in.",
        )


class NotAnArrayLeaf(PmapxError, TypeError, code="PMX125"):
    """A leaf is not something that JAX can put on a device.

    Leaves are arrays and numbers. Strings and objects of your own are not, unless they are
    registered as pytrees.
    """

    def __init__(self, function: str, leaf: str, value: Any) -> None:  # noqa: D107
        text = repr(value)
        shown = text if len(text) <= 60 else text[:57] + "..."
        kind = getattr(value, "dtype", None) or type(value).__qualname__
        super().__init__(
            f"{function} cannot place {leaf}: {shown}, of type {kind}, has no shape and axis that "
            "JAX knows.",
            fix="take it out of the tree first, for example with jax.tree.map over the rest, or "
            "encode it as numbers.",
        )


class NoLeadingAxis(PmapxError, ValueError, code="PMX126"):
    """A leaf has no leading axis to take a row of, or to split.

    ``unreplicate`` and its relatives take one row of each leaf, and ``shard_batch`` splits the
    rows over the devices; a scalar has none. Often the tree was unreplicated before.
    """

    def __init__(self, function: str, leaf: str, shape: str) -> None:  # noqa: D107
        super().__init__(
            f"{function} needs the leading axis 0 of every leaf, but {leaf} is a scalar, {shape}.",
            fix="leave scalars out, or call it on the stacked tree: it may be unreplicated "
            "already.",
        )


class UnevenBatch(PmapxError, ValueError, code="PMX127"):
    """A batch does not divide evenly over the devices.

    ``shard_batch`` turns ``(devices * b, ...)`` into ``(devices, b, ...)``.
    """

    def __init__(self, function: str, leaf: str, shape: str, size: int, devices: int) -> None:  # noqa: D107
        super().__init__(
            f"{function} cannot split {leaf}, {shape}, over {devices} devices: its leading axis 0 "
            f"has size {size}, which {devices} does not divide.",
            fix=f"drop or pad rows to a multiple of {devices}; {size // devices * devices} of them "
            "fit now.",
        )


class WrongLeadingAxis(PmapxError, ValueError, code="PMX128"):
    """The leading axis is not the number of devices.

    ``prefetch`` puts row ``i`` of each leaf on device ``i``, as pmap takes it.
    """

    def __init__(self, function: str, leaf: str, shape: str, devices: int) -> None:  # noqa: D107
        super().__init__(
            f"{function} puts one row on each of {devices} devices, but {leaf} is {shape}: its "
            f"leading axis 0 should have size {devices}.",
            fix="reshape the batch to (devices, batch per device, ...); pmapx.shard_batch does so.",
        )


class NoSuchRow(PmapxError, IndexError, code="PMX129"):
    """A row is out of range, or on another machine.

    ``local_slice(x, i)`` reads row ``i`` where it lies. In a program of several processes each
    one can read only the rows of its own devices.
    """

    def __init__(self, function: str, index: int, shape: str, reason: str) -> None:  # noqa: D107
        super().__init__(
            f"{function} cannot take row {index} along axis 0 of argument 0 'x', {shape}: "
            f"{reason}.",
            fix="pass the index of a row that x.addressable_shards lists.",
        )


# Legacy code.


class PmapShardingGone(PmapxError, TypeError, code="PMX131"):
    """PmapSharding cannot be made from a sharding spec any more.

    JAX removed ``PmapSharding`` and the specs that it took with the original pmap. Arrays of pmap
    have a ``NamedSharding`` now. Under ``pmapx.install()``, ``PmapSharding.default(shape, dim)``
    returns the one that an array of that shape has.
    """

    def __init__(self) -> None:  # noqa: D107
        super().__init__(
            "jax.sharding.PmapSharding was removed from JAX with the original pmap, and its "
            "argument, the sharding spec of a shape and its mapped axis, too.",
            fix="make a jax.sharding.NamedSharding(mesh, PartitionSpec('i')), or call "
            "PmapSharding.default(shape, sharded_dim, devices), which returns one.",
        )


# Several processes.


def _counted(counts: dict[int, int]) -> str:
    return ", ".join(f"process {index} has {count}" for index, count in sorted(counts.items()))


class UnevenShares(PmapxError, ValueError, code="PMX401"):
    """The rows of a map cannot be shared out among the processes.

    Every process finds out by itself how large the map is over all of them, so their shares
    follow a rule: where all processes have equally many devices, each passes equally many rows;
    where they have not, each passes a row for every device it has.
    """

    def __init__(  # noqa: D107
        self, function: str, argument: str, size: int, available: int, counts: dict[int, int]
    ) -> None:
        super().__init__(
            f"{function}: {argument} has {size} rows along the mapped axis, which does not fit "
            f"{available} devices of a process; of the map's devices, {_counted(counts)}.",
            fix="pass a row for each of jax.local_devices(), or name as many devices of each "
            "process with the argument 'devices'.",
        )


class NoLocalDevices(PmapxError, ValueError, code="PMX402"):
    """A map has no device in this process.

    Only processes that have some of its devices take part in a map; the others must not call it.
    """

    def __init__(self, here: int, processes: Sequence[int]) -> None:  # noqa: D107
        super().__init__(
            f"process {here} called a map along an axis whose devices are all of processes "
            f"{list(processes)}.",
            fix="call it in those processes only, or add devices of this process to the argument "
            "'devices'.",
        )


class RowSpansProcesses(PmapxError, ValueError, code="PMX403"):
    """One element of the outermost mapped axis lies in several processes.

    A process passes and gets whole rows, so all devices of a row, those of the pmaps inside it
    included, must be of one process.
    """

    def __init__(self, axes: dict[str, int], here: int) -> None:  # noqa: D107
        super().__init__(
            f"the mapped axes {axes} lay one row of the first axis over process {here} and others.",
            fix="list the devices so that those of a row are of one process, as jax.devices() "
            "does, or make the inner axes no larger than jax.local_device_count().",
        )


class LocalRowsDisagree(PmapxError, ValueError, code="PMX404"):
    """A process passes more or fewer rows than it has of the map.

    ``axis_size`` is the size of the mapped axis over all processes; each passes its own rows.
    """

    def __init__(  # noqa: D107
        self, function: str, argument: str, passed: int, rows: int, size: int, here: int
    ) -> None:
        super().__init__(
            f"{function}: process {here} passes {passed} rows of {argument} along the mapped "
            f"axis, but of {size} rows over all processes, {rows} are its own.",
            fix="pass this process's rows only, as many as it has devices in the map; axis_size "
            "counts the rows of all processes.",
        )


class TracedAcrossProcesses(PmapxError, NotImplementedError, code="PMX405"):
    """A map that spans processes was called with host-local values that are being transformed.

    Inside ``jit`` all arrays are global, and so are the rows that a map sees there. Outside,
    ``grad`` and ``vmap`` see this process's rows only, and have no way to the others'.
    """

    def __init__(self, function: str, argument: str) -> None:  # noqa: D107
        super().__init__(
            f"{function} maps an axis over several processes, and {argument} is being "
            "differentiated or batched outside of it.",
            fix="transform inside the mapped function, as in pmap(grad(f)), or call the map "
            "inside jax.jit on global arrays.",
        )


class CompiledForAnotherShape(PmapxError, TypeError, code="PMX406"):
    """A compiled map was called with rows of another shape than it was compiled for.

    What ``lower(...).compile()`` returns is a program for one shape of each argument. In a map
    that spans processes, that is the shape of this process's rows.
    """

    def __init__(  # noqa: D107
        self, function: str, argument: str, found: tuple[int, ...], wanted: tuple[int, ...]
    ) -> None:
        super().__init__(
            f"{function} was compiled for {argument} of shape {list(wanted)}, the rows of this "
            f"process along its mapped axis, and is called with shape {list(found)}.",
            fix="pass the shape it was lowered for, or lower it again.",
        )


class ReplicasDiffer(PmapxError, ValueError, code="PMX407"):
    """Processes passed different values for an argument that all must pass alike.

    An argument with ``in_axes=None`` is one value for all devices, so every process has to pass
    the same. ``check_replicas=True`` compares them before each call; without it the devices of
    each process would silently go on with their own.
    """

    def __init__(self, function: str, argument: str, difference: Any) -> None:  # noqa: D107
        super().__init__(
            f"{function}: {argument} has in_axes=None, no mapped axis, but differs between "
            f"processes:\n{difference}",
            fix="make it the same in all processes: from one seed, or sent from process 0 with "
            "jax.experimental.multihost_utils.broadcast_one_to_all.",
        )


class CallsDiffer(PmapxError, RuntimeError, code="PMX408"):
    """Processes made different calls at the same time.

    All processes of a map call the same functions in the same order, with arguments of the same
    shapes. One that does otherwise would leave the others waiting for ever;
    ``check_replicas=True`` compares the calls before they run.
    """

    def __init__(self, function: str, difference: Any) -> None:  # noqa: D107
        super().__init__(
            f"the processes do not make the same call of a mapped axis; this one calls "
            f"{function}. The first difference:\n{difference}",
            fix="look for a condition on the process's number, its data or its files that decides "
            "what is called.",
        )


class StitchDisagreement(PmapxError, ValueError, code="PMX409"):
    """Processes passed different trees to stitch.

    Each passes its own part of the same arrays: the same tree, the same shapes, the same types.
    """

    def __init__(self, difference: Any) -> None:  # noqa: D107
        super().__init__(
            "stitch: the processes' parts do not fit together along any axis; the first leaf that "
            f"differs:\n{difference}",
            fix="pass the same tree with the same shapes and types in all processes; pad the last "
            "batch.",
        )


class CannotStitch(PmapxError, ValueError, code="PMX410"):
    """An array cannot be split over this process's devices as its spec says.

    Along each dimension that the spec names a mesh axis for, a process's part is split evenly
    over its own devices along that axis.
    """

    def __init__(  # noqa: D107
        self, path: str, shape: tuple[int, ...], spec: str, sizes: dict[Any, int]
    ) -> None:
        super().__init__(
            f"stitch: {path} is of shape {list(shape)} in this process, which {spec} cannot split "
            f"over its part of the mesh axes, {sizes}.",
            fix="pass a multiple of the devices that this process has along each split axis.",
        )


class CannotUnstitch(PmapxError, TypeError, code="PMX411"):
    """An array lies in a way that has no rows to give back.

    ``unstitch`` takes arrays with a ``NamedSharding``, whose mesh says which part is this
    process's.
    """

    def __init__(self, shape: str, sharding: str) -> None:  # noqa: D107
        super().__init__(
            f"unstitch got an array of shape {shape} with a {sharding}, which names no axis.",
            fix="put it on a NamedSharding first, with jax.device_put(x, sharding).",
        )


class BarrierTimeout(PmapxError, TimeoutError, code="PMX412"):
    """Some processes did not come to a barrier in time.

    They may be lost, slow, or at another barrier. The others that wait at this one end with the
    same error.
    """

    def __init__(self, name: str, timeout: float, missing: Sequence[int], here: int) -> None:  # noqa: D107
        who = (
            f"process{'es' if len(missing) > 1 else ''} {', '.join(map(str, missing))} did not come"
            if missing
            else "some processes did not come"
        )
        super().__init__(
            f"process {here} waited {timeout:g} seconds at the barrier {name!r} (no mapped axis "
            f"is involved): {who}.",
            fix="look at the output of those processes; give a longer timeout if they are only "
            "slow.",
        )


class NoCluster(PmapxError, RuntimeError, code="PMX413"):
    """Nothing tells how to find the other processes.

    ``initialize`` finds Open MPI, Slurm, TPU pods and Kubernetes by variables that they set.
    Elsewhere the coordinator's address, the number of processes and the number of this one have
    to be passed. ``pmapx run -n`` sets them up on one machine.
    """

    def __init__(self, missing: Sequence[str], looked_for: Sequence[str]) -> None:  # noqa: D107
        super().__init__(
            f"initialize found no cluster, and its arguments {', '.join(missing)} are not given "
            f"(nor is any axis mapped yet). None of these is set: {', '.join(looked_for)}.",
            fix="start the program with srun, mpirun or pmapx run -n, or pass "
            f"{', '.join(missing)}.",
        )


class BadCoordinator(PmapxError, RuntimeError, code="PMX414"):
    """The coordinator's address cannot be used.

    Process 0 opens it, and the others connect to it.
    """

    def __init__(self, address: str, process: int, problem: str) -> None:  # noqa: D107
        role = "open" if process == 0 else "reach"
        super().__init__(
            f"process {process} cannot {role} the coordinator address {address!r}, before any "
            f"axis is mapped: {problem}.",
            fix="pass an address of process 0's machine and a port that is free there, the same "
            "in all processes.",
        )


# Warnings: the call went on.


class InputMoved(PmapxWarning, code="PMX901"):
    """An input was moved, and reshard="warn" asks to be told.

    The warning comes once for each argument and placement; ``f.cache_info().moved`` counts all.
    """

    def __init__(self, function: str, argument: str, shape: str, reason: str) -> None:  # noqa: D107
        super().__init__(
            f"{function} moved {argument}, {shape}, to its mapped axis' devices: {reason}.",
            fix="put it there before the call with jax.device_put(x, sharding).",
        )


class DonationUnused(PmapxWarning, code="PMX902"):
    """A donated argument could not be reused.

    A donated buffer is reused for an output of the same shape, type and placement. Without such
    an output the donation saves nothing, though the argument may still be deleted.
    """

    def __init__(self, function: str, argument: str, shape: str, axis: int | None) -> None:  # noqa: D107
        super().__init__(
            f"{function}: donated {argument}, {shape} mapped along axis {axis}, could not be "
            "used: no output that is still free has its shape, type and axis.",
            fix="take it out of donate_argnums, or return an updated value of the same shape.",
        )


class VaryingOutput(PmapxWarning, code="PMX903"):
    """out_axes=None was given for a value that differs between devices.

    ``out_axes=None`` says that an output is the same on every device, so one copy is returned:
    that of the first device. For this output the program does not make it so, and the other
    devices' values are lost without a word.
    """

    def __init__(self, function: str, output: str, axis_name: Hashable, since: str | None) -> None:  # noqa: D107
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

    def __init__(self, function: str, argument: str, size: int, used: int, available: int) -> None:  # noqa: D107
        super().__init__(
            f"{function}: {argument} has size {size} along the mapped axis, which {available} "
            f"devices cannot share evenly; {used} of them run {size // used} elements each.",
            fix=f"use a multiple of {available} elements to keep all devices busy.",
        )


class RemovedName(PmapxWarning, code="PMX905"):
    """Code mentions something that JAX removed with the original pmap.

    It is a flag that has nothing to choose between any more, or ``PmapSharding``, which no array
    has. Under ``pmapx.install()`` the mention is harmless, and can be deleted.
    """

    def __init__(self, name: str, became: str) -> None:  # noqa: D107
        fix = "delete the mention"
        super().__init__(f"{name} was removed from JAX: {became}.", fix=fix)
        # On one line: it comes from the middle of a program that runs on.
        self.args = (f"{name} was removed from JAX: {became}; fix: {fix} ({self.code})",)


class DonatedInputMoved(PmapxWarning, code="PMX911"):
    """A donated argument had to be moved before it could be reused.

    The move takes memory for a part of the argument at a time, and time at every call. In a
    training loop the results of one call are in their place for the next.
    """

    def __init__(self, function: str, argument: str, shape: str) -> None:  # noqa: D107
        super().__init__(
            f"{function} moved donated {argument}, {shape}, to its mapped axis' devices, part by "
            "part; each part was freed once it had moved.",
            fix="put it there before the call, for example with jax.device_put(x, sharding).",
        )
