"""The library functions whose meaning is known, by all their current and former names."""

from __future__ import annotations

import re

PMAP = frozenset({"jax.pmap", "jax.api.pmap", "jax._src.api.pmap"})
# They map as jax.pmap does, and are left alone.
OTHER_PMAPS = frozenset({"pmapx.pmap"})
JIT = frozenset({"jax.jit", "jax.api.jit", "jax.experimental.pjit.pjit", "equinox.filter_jit"})
SHARD_MAP = frozenset({"jax.shard_map", "jax.experimental.shard_map.shard_map"})
PARTIAL = frozenset({"functools.partial", "jax.tree_util.Partial"})

# What these return is called as their first argument is.
SAME_CALLABLE = frozenset(
    {
        "functools.wraps", "functools.lru_cache", "functools.cache", "jax.checkpoint",
        "jax.remat", "jax.named_call", "jax.named_scope", "jax.disable_jit", "jax.vmap",
        "chex.assert_max_traces", "haiku.without_apply_rng",
    }
)  # fmt: skip

TREE_MAP = frozenset(
    {
        "jax.tree.map", "jax.tree_map", "jax.tree_multimap", "jax.tree_util.tree_map",
        "jax.tree_util.tree_multimap", "tree.map_structure", "haiku.data_structures.map",
        "optax.tree_utils.tree_map",
    }
)  # fmt: skip
TREE_LEAVES = frozenset({"jax.tree.leaves", "jax.tree_leaves", "jax.tree_util.tree_leaves"})

# Each stacks a copy of a tree for each device.
REPLICATE = frozenset(
    {
        "flax.jax_utils.replicate", "acme.jax.utils.replicate_in_all_devices",
        "kfac_jax.utils.replicate_all_local_devices", "jaxline.utils.bcast_local_devices",
        "kfac_jax.utils.broadcast_all_local_devices",
    }
)  # fmt: skip
# Each takes the first copy.
UNREPLICATE = frozenset(
    {
        "flax.jax_utils.unreplicate", "flax.training.common_utils.get_metrics",
        "acme.jax.utils.get_from_first_device", "jaxline.utils.get_first",
        "kfac_jax.utils.get_first",
    }
)  # fmt: skip
# Each splits the leading axis over the devices: (n, b, ...) from (n * b, ...).
SHARD = frozenset({"flax.training.common_utils.shard", "flax.training.common_utils.shard_prng_key"})
PREFETCH = frozenset({"flax.jax_utils.prefetch_to_device"})
# What these return is worth following through the calls of a program.
FOLLOWED = (
    PMAP | SHARD_MAP | REPLICATE | UNREPLICATE | PREFETCH
    | {"jax.make_mesh", "jax.device_put_replicated", "jax.device_put_sharded"}
)  # fmt: skip
_LEAVES = {name.rpartition(".")[2] for name in FOLLOWED}
# The shortest occur most: most files with one of them are found by the first.
_WORDS = [
    leaf.encode()
    for leaf in sorted(_LEAVES, key=lambda leaf: (len(leaf), leaf))
    if not any(other in leaf for other in _LEAVES - {leaf})
]  # fmt: skip
_GETTERS = [word for word in _WORDS if word.startswith(b"get_")]
_OTHERS = [word for word in _WORDS if word not in _GETTERS]
_GETTER = re.compile(rb"get_(?:%b)\b" % b"|".join(word[4:] for word in _GETTERS))


def is_followed(data: bytes) -> bool:
    """Returns whether a file's bytes may name anything whose results are followed."""
    return any(word in data for word in _WORDS)


def has_followed(data: bytes) -> bool:
    """Returns whether a file's bytes name anything whose results are followed.

    A name with pmap in it is often a wrapper; one with ``get_metrics`` is another function.

    >>> has_followed(b"my_pmap(f)"), has_followed(b"get_metrics_fn(f)")
    (True, False)
    """
    return any(word in data for word in _OTHERS) or _GETTER.search(data) is not None


def may_pass_on(data: bytes) -> bool:
    """Returns whether names of a file can hold something for those that import them.

    That is what is followed, or a number of devices or processes.
    """
    if b"jax" not in data and b"flax" not in data:
        return False
    return is_followed(data) or b"_count" in data or b"devices" in data


DICTS = frozenset(
    {"builtins.dict", "flax.core.FrozenDict", "flax.core.frozen_dict.FrozenDict"}
)  # fmt: skip
# Of a dict, a new one with its leaves.
DICT_COPIES = DICTS | frozenset(
    {
        "copy.deepcopy", "flax.core.freeze", "flax.core.unfreeze", "flax.core.frozen_dict.freeze",
        "flax.core.frozen_dict.unfreeze",
    }
)  # fmt: skip
# The result is the first argument's, for what is followed here.
IDENTITY = DICT_COPIES | frozenset(
    {
        "jax.block_until_ready", "copy.copy", "builtins.iter", "typing.cast",
        "jax.lax.stop_gradient", "jax.lax.optimization_barrier",
    }
)  # fmt: skip

FLAX_STATE = "flax.training.train_state.TrainState"
GRADIENT = frozenset({"jax.grad", "equinox.filter_grad", "flax.nnx.grad"})
VALUE_AND_GRADIENT = frozenset(
    {"jax.value_and_grad", "equinox.filter_value_and_grad", "flax.nnx.value_and_grad"}
)
MEAN_OVER_AXIS = frozenset({"jax.lax.pmean"})
SUM_OVER_AXIS = frozenset({"jax.lax.psum"})
MADE_VARYING = frozenset({"jax.lax.pvary", "jax.lax.pcast"})

MESH = frozenset(
    {
        "jax.sharding.Mesh", "jax.experimental.maps.Mesh", "jax.interpreters.pxla.Mesh",
        "jax.make_mesh", "jax.sharding.AbstractMesh",
    }
)  # fmt: skip
SPEC = frozenset(
    {
        "jax.P", "jax.sharding.PartitionSpec", "jax.experimental.PartitionSpec",
        "jax.experimental.pjit.PartitionSpec", "jax.interpreters.pxla.PartitionSpec",
    }
)  # fmt: skip

DEVICE_COUNTS = frozenset(
    {
        "jax.device_count", "jax.local_device_count", "jax.lib.xla_bridge.device_count",
        "jax.lib.xla_bridge.local_device_count",
    }
)  # fmt: skip
DEVICES = frozenset({"jax.devices", "jax.local_devices"})
PROCESS_COUNTS = frozenset({"jax.process_count", "jax.host_count"})
PROCESSES = PROCESS_COUNTS | {"jax.process_index", "jax.host_id", "jax.distributed.initialize"}

# What these return, or what is made of it, matters to code that need not name them.
RETURNING = FOLLOWED | OTHER_PMAPS | SPEC | DEVICE_COUNTS | DEVICES | PROCESS_COUNTS

# Reading these of an array touches none of its data.
METADATA = frozenset(
    {
        "shape", "dtype", "ndim", "size", "nbytes", "itemsize", "sharding", "aval",
        "weak_type", "is_fully_addressable", "is_fully_replicated", "is_deleted", "delete",
        "devices", "addressable_shards", "addressable_data", "global_shards",
    }
)  # fmt: skip
# What else arrays have, NumPy's and JAX's.
ARRAY_ATTRIBUTES = METADATA | frozenset(
    {
        "T", "mT", "real", "imag", "flat", "strides", "base", "at", "device", "all", "any",
        "argmax", "argmin", "argpartition", "argsort", "astype", "byteswap", "choose", "clip",
        "compress", "conj", "conjugate", "copy", "cumprod", "cumsum", "diagonal", "dot", "dump",
        "dumps", "fill", "flatten", "item", "max", "mean", "min", "nonzero", "partition", "prod",
        "ptp", "put", "ravel", "repeat", "reshape", "resize", "round", "searchsorted", "sort",
        "squeeze", "std", "sum", "swapaxes", "take", "tobytes", "tofile", "tolist", "tostring",
        "trace", "transpose", "var", "view", "block_until_ready", "copy_to_host_async",
        "device_buffer", "numpy",
    }
)  # fmt: skip
# A tree's methods that give trees with the same leaves.
TREE_METHODS = frozenset(
    {"replace", "_replace", "copy", "pop", "get", "unfreeze", "block_until_ready", "_asdict"}
)


def is_array_function(name: str) -> bool:
    """Returns whether a function returns one array, never a tuple (the exceptions are few)."""
    return name.startswith(("jax.numpy.", "numpy.", "jax.nn.")) or name in (
        MEAN_OVER_AXIS | SUM_OVER_AXIS
    )


FUNCTIONS_BY_LEAF = {
    name.rpartition(".")[2]: tuple(
        other
        for other in sorted(REPLICATE | UNREPLICATE | SHARD | PREFETCH)
        if other.rpartition(".")[2] == name.rpartition(".")[2]
    )
    for name in REPLICATE | UNREPLICATE | SHARD | PREFETCH
}
