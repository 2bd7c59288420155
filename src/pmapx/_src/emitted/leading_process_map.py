"""``jax.pmap`` on ``shard_map`` for host-local shards with a leading device axis or none."""

import functools

import jax
from jax.experimental import multihost_utils


@functools.lru_cache
def mapped_once(fun, axis_name, options, tree):
    in_axes, out_axes, donate_argnums = jax.tree.unflatten(tree, options)
    spec = {0: jax.P(axis_name), None: jax.P()}
    in_specs, out_specs = jax.tree.map(
        spec.get, ((in_axes, 0), out_axes), is_leaf=lambda axis: axis is None
    )

    def each_part(change, specs, tree):
        return jax.tree.map(
            lambda spec, part: jax.tree.map(lambda x: change(x, spec), part), specs, tree
        )

    def body(*given):
        args, kwargs = each_part(lambda x, spec: x[0] if spec else x, in_specs, given)
        put_back = lambda x, spec: jax.numpy.expand_dims(x, 0) if spec else x
        return each_part(put_back, out_specs, fun(*args, **kwargs))

    def call(*args, **kwargs):
        convert = multihost_utils.host_local_array_to_global_array
        # Python numbers stay what they are.
        to_global = lambda x, spec: convert(x, mesh(), spec) if hasattr(x, "shape") else x
        args, kwargs = each_part(to_global, in_specs, (args, kwargs))
        results = jitted(*args, **kwargs)
        return multihost_utils.global_array_to_host_local_array(results, mesh(), out_specs)

    types = (jax.sharding.AxisType.Auto,)
    devices = lambda: sorted(jax.devices(), key=lambda device: device.process_index)
    # Not before the first call, since making a mesh starts JAX's backend.
    mesh = functools.cache(lambda: jax.sharding.Mesh(devices(), (axis_name,), axis_types=types))
    jitted = jax.jit(
        # Without check_vma, fun reduces its gradients itself.
        lambda *args, **kwargs: jax.shard_map(
            body, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=False
        )(args, kwargs),
        donate_argnums=donate_argnums,
    )
    return call


def map_over_devices(fun, axis_name="devices", *, in_axes=0, out_axes=0, donate_argnums=()):
    """Maps fun over the devices of all processes; axis None means replicated.

    Arguments and results are host-local arrays.
    """
    options = in_axes, out_axes, donate_argnums
    leaves, tree = jax.tree.flatten(options, is_leaf=lambda axis: axis is None)
    return mapped_once(fun, axis_name, tuple(leaves), tree)
