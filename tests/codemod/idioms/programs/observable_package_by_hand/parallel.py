"""What runs on all devices, under one axis name."""

from functools import cache

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "walkers"


@cache
def device_mesh():
    return jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(AxisType.Auto,))


def shard_map(fn, in_specs, out_specs):
    return jax.shard_map(
        fn, mesh=device_mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def mean_over_devices(tree):
    return jax.lax.pmean(tree, AXIS)


def copy_to_devices(tree):
    return jax.device_put(tree, NamedSharding(device_mesh(), P()))


def put(tree):
    """Shards data along its first axis."""
    return jax.device_put(tree, NamedSharding(device_mesh(), P(AXIS)))


def keys_for_devices(key):
    keys = jax.random.split(key, jax.device_count())
    return put(keys)


def key_stream(keys):
    while True:
        keys, now = jax.vmap(jax.random.split, out_axes=1)(keys)
        yield now
