"""Names that JAX removed and that stand for nothing now: mentioned, they say what they became."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._src import errors
from pmapx._src.legacy.patches import Bindings

FLAGS = {
    "jax_pmap_shmap_merge": "there is one pmap, on jit and shard_map, and no flag chooses it",
    "jax_pmap_no_rank_reduction": "rows keep their rank on the device, always",
}


class _Mentioned(type):
    """Lets code ask whether something is a PmapSharding: nothing is."""

    def __instancecheck__(cls, instance: Any) -> bool:
        errors.warn(errors.RemovedName("jax.sharding.PmapSharding", _BECAME))
        return False

    def __subclasscheck__(cls, subclass: type) -> bool:
        return type.__subclasscheck__(cls, subclass)


_BECAME = "outputs of pmap have a NamedSharding over a mesh of the map's devices"


class PmapSharding(metaclass=_Mentioned):
    """Stands for the class of old: ``default`` gives the layout that replaced it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Refuses: a sharding spec, which it took, is gone too."""
        raise errors.PmapShardingRemoved

    @classmethod
    def default(
        cls,
        shape: Sequence[int],
        sharded_dim: int | None = 0,
        devices: Sequence[jax.Device] | None = None,
    ) -> NamedSharding:
        """Returns the layout of an array of pmap that is split along ``sharded_dim``."""
        errors.warn(errors.RemovedName("jax.sharding.PmapSharding", _BECAME))
        count = 1 if sharded_dim is None else shape[sharded_dim]
        chosen = np.array(list(devices if devices is not None else jax.devices())[:count])
        spec = () if sharded_dim is None else (None,) * sharded_dim + ("rows",)
        return NamedSharding(Mesh(chosen, ("rows",)), PartitionSpec(*spec))


def put_back(bindings: Bindings) -> None:
    """Binds the removed names that this release of JAX has not."""
    if not _has_pmap_sharding():
        bindings.set(jax.sharding, "PmapSharding", PmapSharding, "jax.sharding.PmapSharding")
    gone = [flag for flag in FLAGS if not hasattr(jax.config, flag)]
    for flag in gone:
        if flag.upper() in os.environ:
            errors.warn(errors.RemovedName(flag.upper(), FLAGS[flag]))
        reader = property(functools.partial(_explained, flag))
        bindings.set(type(jax.config), flag, reader, f"jax.config.{flag}")
    if gone:
        update = _updating(jax.config.update, frozenset(gone))
        bindings.set(jax.config, "update", update, "jax.config.update, for those flags")


def _has_pmap_sharding() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return hasattr(jax.sharding, "PmapSharding")


def _explained(flag: str, config: Any = None) -> bool:
    errors.warn(errors.RemovedName(flag, FLAGS[flag]))
    return True


def _updating(update: Callable[[str, Any], None], gone: frozenset[str]) -> Callable[..., None]:
    def update_or_explain(name: str, val: Any) -> None:
        if name in gone:
            _explained(name)
        else:
            update(name, val)

    return update_or_explain
