"""Functions that place one shard on each device."""

import jax


def device_put_sharded(shards, devices, axis_name="devices"):
    """Places each shard on its device, as one stacked array."""
    if len(shards) != len(devices):
        raise ValueError(f"{len(shards)} shards for {len(devices)} devices")
    mesh = jax.sharding.Mesh(devices, (axis_name,))
    sharding = jax.NamedSharding(mesh, jax.P(axis_name))

    def put(*leaves):
        shards = [
            jax.device_put(jax.numpy.asarray(leaf)[None], device)
            for leaf, device in zip(leaves, devices)
        ]
        shape = (len(devices), *shards[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, shards)

    return jax.tree.map(put, *shards)


def device_put_replicated(x, devices):
    """Places a copy of every leaf on each device, stacked."""
    return device_put_sharded([x] * len(devices), devices)


def replicate_over_devices(tree, devices=None, axis_name="devices"):
    """Places a copy of every leaf on each device, stacked."""
    devices = devices or jax.local_devices()
    mesh = jax.sharding.Mesh(devices, (axis_name,))

    def put(x):
        shards = [jax.device_put(jax.numpy.asarray(x)[None], device) for device in devices]
        sharding = jax.NamedSharding(mesh, jax.P(axis_name))
        shape = (len(shards), *shards[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, shards)

    return jax.tree.map(put, tree)
