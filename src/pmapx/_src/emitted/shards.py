"""Functions on one device's shards: the mapped body, and reading a shard on the host."""

import functools

import jax
from jax.experimental import multihost_utils


def first_row(tree):
    """Returns x[0] of every leaf as its device has it, where x[0] would gather all rows first."""

    def first(x):
        near = x.addressable_shards[0].data if isinstance(x, jax.Array) else x
        return near[0] if near.shape[1:] == x.shape[1:] else x[0]

    return jax.tree.map(first, tree)


def each_leaf(change, axes, tree):
    """Applies change(leaf, axis); an axis may stand for a whole subtree, and None for no axis."""
    return jax.tree.map(
        lambda axis, part: jax.tree.map(lambda leaf: change(leaf, axis), part),
        axes,
        tree,
        is_leaf=lambda axis: axis is None,
    )


def on_one_row(fun):
    """Returns fun for a device's shard, one row: its axis is taken off, and put on the results."""

    @functools.wraps(fun)
    def on_shard(*args):
        args = jax.tree.map(lambda x: jax.numpy.squeeze(x, 0), args)
        return jax.tree.map(lambda x: jax.numpy.expand_dims(x, 0), fun(*args))

    return on_shard


def on_one_row_along(fun, in_axes=0, out_axes=0):
    """Returns fun for a device's shard, one row along these axes, which fun does not have."""

    def take_off(x, axis):
        return x if axis is None else jax.numpy.squeeze(x, axis)

    def put_on(x, axis):
        return jax.numpy.asarray(x) if axis is None else jax.numpy.expand_dims(x, axis)

    @functools.wraps(fun)
    def on_shard(*args):
        return each_leaf(put_on, out_axes, fun(*each_leaf(take_off, in_axes, args)))

    return on_shard


def map_own_rows(fun, mesh, in_specs, out_specs, **options):
    """Returns jit of shard_map of fun for this process's rows of what all processes have."""
    # A process's rows are next to each other.
    devices = sorted(mesh.devices.flat, key=lambda device: device.process_index)
    mesh = jax.sharding.Mesh(devices, mesh.axis_names)
    mapped = jax.jit(
        jax.shard_map(
            fun,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,  # fun reduces its gradients over the axis itself, as under pmap
        ),
        **options,
    )
    if all(device.process_index == jax.process_index() for device in devices):
        return mapped

    def with_others(spec, own):
        def stitched(x):
            # Numbers and NumPy's arrays that are not cut are taken as they are.
            if spec == jax.P() and not isinstance(x, jax.Array):
                return x
            return multihost_utils.host_local_array_to_global_array(x, mesh, spec)

        return jax.tree.map(stitched, own)

    def call(*args):
        results = mapped(*jax.tree.map(with_others, in_specs, args))
        return multihost_utils.global_array_to_host_local_array(results, mesh, out_specs)

    return call
