"""Mistakes in creating and reading arrays with a leading device axis, and in their shardings."""

from typing import Any

from pmapx._src.errors.base import PmapxError, shown


class ShardsNotASequence(PmapxError, TypeError, code="PMX121"):
    """The shards passed to device_put_sharded are not a list or tuple.

    The first argument is a sequence with one shard per device, each an array or a pytree of
    arrays. An array that is already stacked does not need to be split into a list.
    """

    def __init__(self, function: str, shards: Any) -> None:
        shape = f" of shape {tuple(shards.shape)}" if hasattr(shards, "shape") else ""
        super().__init__(
            f"{function} expects a sequence of shards, one per device, as argument 0 'shards', but "
            f"got {type(shards).__module__}.{type(shards).__qualname__}{shape}.",
            fix="pass a list with one shard per device; place a stacked array with "
            "pmapx.prefetch, pmapx.shard_batch or jax.device_put(x, sharding).",
        )


class ShardCountMismatch(PmapxError, ValueError, code="PMX122"):
    """The number of shards differs from the number of devices.

    ``device_put_sharded(shards, devices)`` places shard ``i`` on device ``i``.
    """

    def __init__(self, function: str, shards: int, devices: int) -> None:
        super().__init__(
            f"{function} got len(shards) = {shards} for argument 0 'shards', but len(devices) = "
            f"{devices}.",
            fix="pass one shard per device.",
        )


class ShardsDisagree(PmapxError, ValueError, code="PMX123"):
    """Two shards differ in structure, shape or dtype.

    The shards are stacked into one array along a leading device axis, so each leaf must have the
    same shape and dtype in all of them.
    """

    def __init__(self, function: str, first: str, is_first: str, other: str, is_other: str) -> None:
        super().__init__(
            f"the shards passed to {function} must have consistent structure, shape and dtype to "
            f"be stacked along axis 0:\n    {first} is {is_first}\n    {other} is {is_other}",
            fix="give all shards the same structure, shapes and dtypes; pad ragged ones.",
        )


class NotConcrete(PmapxError, TypeError, code="PMX124"):
    """A function that needs concrete arrays got a tracer.

    Arrays are placed on devices and read from them outside of traced functions: inside ``jit``,
    ``grad`` or ``pmap``, only their shapes and dtypes are known.
    """

    def __init__(self, function: str, leaf: str, shape: str) -> None:
        super().__init__(
            f"{function} needs a concrete array, but {leaf} is a tracer, {shape}.",
            fix="call it outside of the traced function, and pass the result in.",
        )


class NotAnArrayLeaf(PmapxError, TypeError, code="PMX125"):
    """A leaf is not a valid JAX type.

    Leaves are arrays and numbers. Strings and instances of unregistered classes are not.
    """

    def __init__(self, function: str, leaf: str, value: Any) -> None:
        kind = getattr(value, "dtype", None) or type(value).__qualname__
        super().__init__(
            f"{function} cannot place {leaf} on a device: {shown(value)}, of type {kind}, is not a "
            "valid JAX type.",
            fix="remove it from the tree, or convert it to an array of a numeric dtype.",
        )


class NoLeadingAxis(PmapxError, ValueError, code="PMX126"):
    """A leaf has no leading axis.

    ``unreplicate``, ``local_slice`` and ``to_host`` index the leading device axis of each leaf, and
    ``shard_batch`` splits it; a scalar has none. Often the tree is already unreplicated.
    """

    def __init__(self, function: str, leaf: str, shape: str) -> None:
        super().__init__(
            f"{function} needs the leading axis 0 of every leaf, but {leaf} is a scalar, {shape}.",
            fix="remove scalars from the tree, or pass the replicated tree: this one may already "
            "be unreplicated.",
        )


class UnevenBatch(PmapxError, ValueError, code="PMX127"):
    """The batch size is not divisible by the number of devices.

    ``shard_batch`` reshapes ``(devices * b, ...)`` to ``(devices, b, ...)``.
    """

    def __init__(self, function: str, leaf: str, shape: str, size: int, devices: int) -> None:
        super().__init__(
            f"{function} cannot shard {leaf}, {shape}, over {devices} devices: its leading axis 0 "
            f"has size {size}, which is not divisible by {devices}.",
            fix=f"drop or pad examples to a multiple of {devices}, for example "
            f"{size // devices * devices}.",
        )


class WrongLeadingAxis(PmapxError, ValueError, code="PMX128"):
    """The size of the leading axis differs from the number of devices.

    ``prefetch`` places index ``i`` of the leading axis of each leaf on device ``i``, as pmap
    expects.
    """

    def __init__(self, function: str, leaf: str, shape: str, devices: int) -> None:
        super().__init__(
            f"{function} shards the leading axis over {devices} devices, but {leaf} is {shape}: "
            f"its leading axis 0 should have size {devices}.",
            fix="reshape the batch to (devices, batch per device, ...), as pmapx.shard_batch does.",
        )


class NoSuchShard(PmapxError, IndexError, code="PMX129"):
    """An index of the leading device axis is out of range, or on another process.

    ``local_slice(x, i)`` reads index ``i`` on the device that holds it. In a multi-process program,
    each process can read only the shards on its own devices.
    """

    def __init__(self, function: str, index: int, shape: str, reason: str) -> None:
        super().__init__(
            f"{function} cannot read index {index} along axis 0 of argument 0 'x', {shape}: "
            f"{reason}.",
            fix="pass the index of a shard in x.addressable_shards.",
        )


class PmapShardingRemoved(PmapxError, TypeError, code="PMX131"):
    """PmapSharding can no longer be constructed from a sharding spec.

    JAX removed ``PmapSharding`` and its sharding specs with the original pmap. The outputs of a
    pmapped function have a ``NamedSharding`` now. Under ``pmapx.install()``,
    ``PmapSharding.default(shape, dim)`` returns the one for an array of that shape.
    """

    def __init__(self) -> None:
        super().__init__(
            "jax.sharding.PmapSharding and its sharding specs were removed from JAX with the "
            "original pmap.",
            fix="use jax.sharding.NamedSharding(mesh, PartitionSpec('i')), or call "
            "PmapSharding.default(shape, sharded_dim, devices), which returns one.",
        )
