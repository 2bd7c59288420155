"""``jax.pmap`` on ``shard_map`` for pmaps over axis 0 or ``None``."""

import functools

import jax


@functools.lru_cache
def map_over_devices(fun, axis_name="devices", *, in_axes=0, out_axes=0, donate_argnums=()):
    """Maps fun over all devices; axis None means replicated."""

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

    def mapped(*args):
        # The mesh is made here, since making it starts JAX's backend.
        types = (jax.sharding.AxisType.Auto,)
        return jax.shard_map(
            body,
            mesh=jax.make_mesh((jax.device_count(),), (axis_name,), axis_types=types),
            in_specs=specs(in_axes),
            out_specs=specs(out_axes),
            check_vma=False,  # fun reduces its gradients itself, as under pmap
        )(*args)

    return jax.jit(mapped, donate_argnums=donate_argnums)
