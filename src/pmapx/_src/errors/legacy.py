"""Legacy code that cannot run."""

from __future__ import annotations

from pmapx._src.errors.base import PmapxError


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
