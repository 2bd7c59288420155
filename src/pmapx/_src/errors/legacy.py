"""Legacy code that cannot run."""

from __future__ import annotations

from pmapx._src.errors.base import PmapxError


class PmapShardingGone(PmapxError, TypeError, code="PMX131"):
    """PmapSharding cannot be made from a sharding spec any more.

    JAX removed ``PmapSharding`` and the specs that it took with the original pmap. Arrays of pmap
    have a ``NamedSharding`` now. Under ``pmapx.install()``, ``PmapSharding.default(shape, dim)``
    returns the one that an array of that shape has.
    """

    def __init__(self) -> None:
        super().__init__(
            "jax.sharding.PmapSharding was removed from JAX with the original pmap, and its "
            "argument, the sharding spec of a shape and its mapped axis, too.",
            fix="make a jax.sharding.NamedSharding(mesh, PartitionSpec('i')), or call "
            "PmapSharding.default(shape, sharded_dim, devices), which returns one.",
        )
