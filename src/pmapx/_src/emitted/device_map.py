"""``jax.pmap`` on ``shard_map`` for any axes and options."""

import functools

import jax

from pmapx._src.emitted.shards import each_leaf


def over_mesh(body, shards, name, size, devices, specs, axes, out):
    """Maps body over a mesh of as many devices as there are shards."""
    if jax.device_count() > jax.local_device_count() and size != len(devices):
        raise ValueError(f"{size} shards for the {len(devices)} devices of all processes")
    name = name or "devices"
    return jax.shard_map(
        body,
        mesh=jax.sharding.Mesh(devices[:size], (name,)),
        in_specs=(specs(axes, name),),
        out_specs=specs(out, name),
        check_vma=False,  # body reduces its gradients itself, as under pmap
    )(shards)


def on_each_device(
    fun, axis_name=None, in_axes=0, out_axes=0, static_argnums=(), devices=None, backend=None
):
    """Returns fun over the devices, for jax.jit: pmap on shard_map."""
    static = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)

    def specs(axes, name):
        def spec(axis):
            return jax.P(*() if axis is None else (*[None] * axis, name))

        return jax.tree.map(spec, axes, is_leaf=lambda axis: axis is None)

    def from_front(axes):
        # Shards along an axis from the end are in front while mapped.
        return jax.tree.map(lambda axis: max(axis, 0), axes)

    def take_off(x, axis):
        return x if axis is None else jax.numpy.squeeze(x, axis)

    def put_back(x, axis):
        return jax.numpy.asarray(x) if axis is None else jax.numpy.expand_dims(x, axis)

    def mapped(*args, **kwargs):
        axes = in_axes
        if isinstance(axes, (tuple, list)):
            axes = tuple(axis for i, axis in enumerate(axes) if i not in static)
        # Keyword arguments are mapped over their first axis.
        axes = (axes, 0)
        shards = (tuple(arg for i, arg in enumerate(args) if i not in static), kwargs)
        shards = each_leaf(
            lambda x, axis: jax.numpy.moveaxis(x, axis, 0) if (axis or 0) < 0 else x, axes, shards
        )
        axes, out = from_front(axes), from_front(out_axes)
        sizes = each_leaf(lambda x, axis: () if axis is None else x.shape[axis], axes, shards)
        chosen = jax.devices(backend) if devices is None else list(devices)
        # Without shards, each device does the same.
        size = next(iter(jax.tree.leaves(sizes)), len(chosen))

        def body(shards):
            given, named = each_leaf(take_off, axes, shards)
            given = iter(given)
            arguments = [arg if i in static else next(given) for i, arg in enumerate(args)]
            return each_leaf(put_back, out, fun(*arguments, **named))

        results = over_mesh(body, shards, axis_name, size, chosen, specs, axes, out)
        return each_leaf(
            lambda x, axis: jax.numpy.moveaxis(x, 0, axis) if (axis or 0) < 0 else x,
            out_axes,
            results,
        )

    mapped.__name__ = getattr(fun, "__name__", "mapped")
    return mapped


@functools.lru_cache
def remembered_map(fun, options, tree):
    return on_each_device(fun, **jax.tree.unflatten(tree, options))


def mapped_once(fun, **options):
    """Returns one function for the same fun and options, compiled once."""
    leaves, tree = jax.tree.flatten(options, is_leaf=lambda option: option is None)
    try:
        return remembered_map(fun, tuple(leaves), tree)
    except TypeError:  # something that cannot be a key
        return on_each_device(fun, **options)


def map_over_devices(
    fun,
    axis_name=None,
    *,
    in_axes=0,
    out_axes=0,
    static_broadcasted_argnums=(),
    devices=None,
    backend=None,
    axis_size=None,
    donate_argnums=(),
):
    """Returns jax.jit of fun over the devices, with the options of jax.pmap."""
    del axis_size  # that of the arguments
    static = static_broadcasted_argnums
    mapped = mapped_once(
        fun,
        axis_name=axis_name,
        in_axes=in_axes,
        out_axes=out_axes,
        static_argnums=static,
        devices=devices,
        backend=backend,
    )
    return jax.jit(mapped, static_argnums=static, donate_argnums=donate_argnums)
