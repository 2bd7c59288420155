"""Mistakes in making, reading and taking apart arrays of one row a device."""

from __future__ import annotations

from typing import Any

from pmapx._src.errors.base import PmapxError


class ShardsNotASequence(PmapxError, TypeError, code="PMX121"):
    """device_put_sharded was given something else than a list of shards.

    Its first argument is a list or tuple with one shard a device, each an array or a pytree of
    arrays. An array that is stacked already needs no taking apart.
    """

    def __init__(self, function: str, shards: Any) -> None:
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

    def __init__(self, function: str, shards: int, devices: int) -> None:
        super().__init__(
            f"{function} got len(shards) = {shards} for argument 0 'shards', but len(devices) = "
            f"{devices}: the leading axis of the result has one row a device.",
            fix="pass as many shards as devices.",
        )


class ShardsDisagree(PmapxError, ValueError, code="PMX123"):
    """Two shards have another structure, shape or type.

    Shards become rows of one array, so each leaf has the same shape and type in all of them.
    """

    def __init__(self, function: str, first: str, is_first: str, other: str, is_other: str) -> None:
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

    def __init__(self, function: str, leaf: str, shape: str) -> None:
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

    def __init__(self, function: str, leaf: str, value: Any) -> None:
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

    def __init__(self, function: str, leaf: str, shape: str) -> None:
        super().__init__(
            f"{function} needs the leading axis 0 of every leaf, but {leaf} is a scalar, {shape}.",
            fix="leave scalars out, or call it on the stacked tree: it may be unreplicated "
            "already.",
        )


class UnevenBatch(PmapxError, ValueError, code="PMX127"):
    """A batch does not divide evenly over the devices.

    ``shard_batch`` turns ``(devices * b, ...)`` into ``(devices, b, ...)``.
    """

    def __init__(self, function: str, leaf: str, shape: str, size: int, devices: int) -> None:
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

    def __init__(self, function: str, leaf: str, shape: str, devices: int) -> None:
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

    def __init__(self, function: str, index: int, shape: str, reason: str) -> None:
        super().__init__(
            f"{function} cannot take row {index} along axis 0 of argument 0 'x', {shape}: "
            f"{reason}.",
            fix="pass the index of a row that x.addressable_shards lists.",
        )
