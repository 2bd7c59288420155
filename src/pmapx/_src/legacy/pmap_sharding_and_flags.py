"""``PmapSharding`` and flags that JAX removed with the original pmap: uses only warn."""

import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._src import errors
from pmapx._src.legacy.patches import Bindings, current

FLAGS = {
    "jax_pmap_shmap_merge": "pmap is always implemented with jit and shard_map",
    "jax_pmap_no_rank_reduction": "shards always keep their rank on the device",
}


class _NoInstances(type):
    """``isinstance(x, PmapSharding)`` is False for every ``x``, with a warning."""

    def __instancecheck__(cls, instance: Any) -> bool:
        errors.warn(errors.RemovedName("jax.sharding.PmapSharding", _BECAME))
        return False


_BECAME = "outputs of pmap have a NamedSharding over a mesh of its devices"


class PmapSharding(metaclass=_NoInstances):
    """A stand-in for the removed class; ``default`` returns the sharding that replaced it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise errors.PmapShardingRemoved

    @classmethod
    def default(
        cls,
        shape: Sequence[int],
        sharded_dim: int | None = 0,
        devices: Sequence[jax.Device] | None = None,
    ) -> NamedSharding:
        """Returns the sharding of a pmap array that is sharded along ``sharded_dim``."""
        errors.warn(errors.RemovedName("jax.sharding.PmapSharding", _BECAME))
        count = 1 if sharded_dim is None else shape[sharded_dim]
        chosen = np.array(list(devices if devices is not None else jax.devices())[:count])
        spec = () if sharded_dim is None else (None,) * sharded_dim + ("devices",)
        return NamedSharding(Mesh(chosen, ("devices",)), PartitionSpec(*spec))


def restore(bindings: Bindings) -> None:
    """Restores the names that this release of JAX does not have."""
    if current(jax.sharding, "PmapSharding") is None:
        bindings.set(jax.sharding, "PmapSharding", PmapSharding, "jax.sharding.PmapSharding")
    gone = [flag for flag in FLAGS if not hasattr(jax.config, flag)]
    for flag in gone:
        if flag.upper() in os.environ:
            errors.warn(errors.RemovedName(flag.upper(), FLAGS[flag]))
        reader = property(functools.partial(_warn_of_flag, flag))
        bindings.set(type(jax.config), flag, reader, f"jax.config.{flag}")
    if gone:
        update = jax.config.update

        def update_or_warn(name: str, val: Any) -> None:
            if name in gone:
                _warn_of_flag(name)
            else:
                update(name, val)

        bindings.set(jax.config, "update", update_or_warn, "jax.config.update, for those flags")


def _warn_of_flag(flag: str, config: Any = None) -> bool:
    errors.warn(errors.RemovedName(flag, FLAGS[flag]))
    return True
