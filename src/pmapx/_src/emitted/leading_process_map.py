"""``jax.pmap`` on ``shard_map`` for host-local shards with a leading device axis or none."""

import functools

import jax
from jax.experimental import multihost_utils


@functools.lru_cache
def mapped_once(fun, axis_name, options, tree):
    in_axes, out_axes, donate_argnums = jax.tree.unflatten(tree, options)
    each_part = functools.partial(jax.tree.map, is_leaf=lambda axis: axis is None)
    in_specs, out_specs = each_part({0: jax.P(axis_name), None: jax.P()}.get, (in_axes, out_axes))

    def body(args, kwargs):
        args, kwargs = each_part(
            lambda axis, part: part if axis is None else jax.tree.map(lambda x: x[0], part),
            (in_axes, 0),
            (args, kwargs),
        )
        return each_part(
            lambda axis, part: (
                part if axis is None else jax.tree.map(lambda x: jax.numpy.expand_dims(x, 0), part)
            ),
            out_axes,
            fun(*args, **kwargs),
        )

    def to_global(spec, part):
        convert = multihost_utils.host_local_array_to_global_array
        # Numbers of Python's stay what they are.
        return jax.tree.map(lambda x: convert(x, mesh(), spec) if hasattr(x, "shape") else x, part)

    def call(*args, **kwargs):
        shards = jax.tree.map(to_global, (in_specs, jax.P(axis_name)), (args, kwargs))
        results = jitted(*shards[0], **shards[1])
        return multihost_utils.global_array_to_host_local_array(results, mesh(), out_specs)

    # Not before the first call, since making a mesh starts JAX's backend.
    mesh = functools.cache(
        lambda: jax.sharding.Mesh(
            sorted(jax.devices(), key=lambda device: device.process_index),
            (axis_name,),
            axis_types=(jax.sharding.AxisType.Auto,),
        )
    )
    jitted = jax.jit(
        lambda *args, **kwargs: jax.shard_map(
            body,
            mesh=mesh(),
            in_specs=(in_specs, jax.P(axis_name)),
            out_specs=out_specs,
            check_vma=False,  # fun reduces its gradients over the axis itself, as under pmap
        )(args, kwargs),
        donate_argnums=donate_argnums,
    )
    return call


def map_over_devices(fun, axis_name="devices", *, in_axes=0, out_axes=0, donate_argnums=()):
    """Maps fun over the devices of all processes: axis 0 is sharded, what has None is replicated.

    Arguments and results are host-local arrays.
    """
    options, tree = jax.tree.flatten(
        (in_axes, out_axes, donate_argnums), is_leaf=lambda axis: axis is None
    )
    return mapped_once(fun, axis_name, tuple(options), tree)
