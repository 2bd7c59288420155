"""What runs on all devices, under one axis name."""

from functools import partial

import jax

AXIS = "walkers"


def on_devices(function, **options):
    return jax.pmap(function, axis_name=AXIS, **options)


def mean_over_devices(tree):
    return jax.lax.pmean(tree, AXIS)


def copy_to_devices(tree):
    """Adds a leading device axis; the data is the same on all devices."""
    return jax.device_put_replicated(tree, jax.local_devices())


@jax.pmap
def put(tree):
    """Places data that has a leading device axis."""
    return tree


def of_one_device(tree, device=0):
    return jax.tree.map(lambda leaf: leaf[device], tree)


def spread_walkers(walkers):
    n = jax.local_device_count()
    return put(walkers.reshape(n, walkers.shape[0] // n, *walkers.shape[1:]))


def join_walkers(walkers):
    return walkers.reshape(-1, *walkers.shape[2:])


def keys_for_devices(key):
    keys = jax.random.split(key, jax.local_device_count())
    return put(keys)


@partial(jax.pmap, static_broadcasted_argnums=(1,))
def split_each(key, count):
    later, *now = jax.random.split(key, count + 1)
    return later, now


def key_stream(keys):
    while True:
        keys, (now,) = split_each(keys, 1)
        yield now
