"""``jax.pmap`` on ``shard_map`` where one map is inside another."""

import jax
import numpy

from pmapx._src.emitted.shards import each_leaf


class InnerAxisMet(Exception):
    """Another map was met inside: name and size of the axis that the mesh needs for it."""


def over_one_mesh(body, shards, name, size, devices, in_specs, out_specs):
    """Maps body over an axis of the mesh that it shares with the maps around and inside it."""

    def shard_map(name, mesh=None):
        return jax.shard_map(
            body,
            mesh=mesh,
            axis_names={name},
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,  # body reduces its gradients over the axis itself, as under pmap
        )(shards)

    around = jax.sharding.get_abstract_mesh()
    if jax.sharding.AxisType.Manual in around.axis_types:
        if around.shape.get(name) != size:
            raise InnerAxisMet(name, size)
        return shard_map(name)
    inner = {}
    while True:
        shape = (size, *inner.values())
        used = numpy.array(devices[: numpy.prod(shape)]).reshape(shape)
        try:
            return shard_map(name, jax.sharding.Mesh(used, (name, *inner)))
        except InnerAxisMet as met:
            name_met, size_met = met.args
            if name_met in (name, *inner):
                raise ValueError(f"two maps, one in the other, over axis {name_met!r}") from None
            inner[name_met] = size_met


def on_each_device(
    fun, axis_name=None, in_axes=0, out_axes=0, static_argnums=(), devices=None, backend=None
):
    """Returns fun over the devices, for jax.jit: what jax.pmap did, on jax.shard_map."""
    name = f"devices {id(fun)}" if axis_name is None else axis_name
    static = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)

    def specs(axes):
        def spec(axis):
            return jax.sharding.PartitionSpec(*() if axis is None else (*[None] * axis, name))

        return jax.tree.map(spec, axes, is_leaf=lambda axis: axis is None)

    def from_front(axes):
        # Shards along an axis that counts from the end are in front while they are mapped.
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
            whole = [arg if i in static else next(given) for i, arg in enumerate(args)]
            return each_leaf(put_back, out, fun(*whole, **named))

        results = over_one_mesh(body, shards, name, size, chosen, (specs(axes),), specs(out))
        return each_leaf(
            lambda x, axis: jax.numpy.moveaxis(x, 0, axis) if (axis or 0) < 0 else x,
            out_axes,
            results,
        )

    mapped.__name__ = getattr(fun, "__name__", "mapped")
    return mapped
