"""``jax.pmap`` on ``shard_map`` for host-local shards with a leading device axis or none."""

import functools

import jax
from jax.experimental import multihost_utils


@functools.lru_cache
def map_over_devices(fun, axis_name="devices", *, in_axes=0, out_axes=0, donate_argnums=()):
    """Maps fun over the devices of all processes: axis 0 is sharded, what has None is replicated.

    Arguments and results are host-local arrays.
    """

    def each_part(change, axes, tree):
        return jax.tree.map(
            lambda axis, part: part if axis is None else jax.tree.map(change, part),
            axes,
            tree,
            is_leaf=lambda axis: axis is None,
        )

    def specs(axes):
        spec = {0: jax.P(axis_name), None: jax.P()}
        return jax.tree.map(spec.get, axes, is_leaf=lambda axis: axis is None)

    def body(*args):
        results = fun(*each_part(lambda x: x[0], in_axes, args))
        return each_part(lambda x: jax.numpy.expand_dims(x, 0), out_axes, results)

    @functools.cache
    def compiled():
        # Not before the first call, since making a mesh starts JAX's backend.
        mesh = jax.sharding.Mesh(
            sorted(jax.devices(), key=lambda device: device.process_index),
            (axis_name,),
            axis_types=(jax.sharding.AxisType.Auto,),
        )
        mapped = jax.shard_map(
            body,
            mesh=mesh,
            in_specs=specs(in_axes),
            out_specs=specs(out_axes),
            check_vma=False,  # fun reduces its gradients over the axis itself, as under pmap
        )
        return jax.jit(mapped, donate_argnums=donate_argnums), mesh

    def call(*args):
        jitted, mesh = compiled()
        args = multihost_utils.host_local_array_to_global_array(args, mesh, specs(in_axes))
        results = jitted(*args)
        return multihost_utils.global_array_to_host_local_array(results, mesh, specs(out_axes))

    return call
