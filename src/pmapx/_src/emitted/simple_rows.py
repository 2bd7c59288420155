"""``jax.pmap`` on ``shard_map`` where every map is over leading axes."""

import jax


def one_row_each(fun, axis_name=None, devices=None, backend=None):
    """Returns fun mapped over rows, one a device, for jax.jit: what jax.pmap did, on shard_map."""
    name = "rows" if axis_name is None else axis_name
    spec = jax.sharding.PartitionSpec(name)

    def mapped(*args, **kwargs):
        def on_one_device(args, kwargs):
            args, kwargs = jax.tree.map(lambda x: jax.numpy.squeeze(x, 0), (args, kwargs))
            return jax.tree.map(lambda x: jax.numpy.expand_dims(x, 0), fun(*args, **kwargs))

        chosen = jax.devices(backend) if devices is None else list(devices)
        sizes = [x.shape[0] for x in jax.tree.leaves((args, kwargs))]
        size = sizes[0] if sizes else len(chosen)
        if jax.device_count() > jax.local_device_count() and size != len(chosen):
            raise ValueError(f"{size} rows for the {len(chosen)} devices of all processes")
        return jax.shard_map(
            on_one_device,
            mesh=jax.sharding.Mesh(chosen[:size], (name,)),
            in_specs=spec,
            out_specs=spec,
            check_vma=False,  # fun reduces its gradients over the axis itself, as under pmap
        )(args, kwargs)

    mapped.__name__ = getattr(fun, "__name__", "mapped")
    return mapped
