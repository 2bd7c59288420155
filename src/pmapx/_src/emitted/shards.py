"""Functions on the shards of one device, or of one process."""

import jax
from jax.experimental import multihost_utils


def each_leaf(change, axes, tree):
    """Applies change(leaf, axis); an axis may stand for a whole subtree, and None for no axis."""
    return jax.tree.map(
        lambda axis, part: jax.tree.map(lambda leaf: change(leaf, axis), part),
        axes,
        tree,
        is_leaf=lambda axis: axis is None,
    )


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
            # Numbers and NumPy's arrays that are not sharded are taken as they are.
            if spec == jax.P() and not isinstance(x, jax.Array):
                return x
            return multihost_utils.host_local_array_to_global_array(x, mesh, spec)

        return jax.tree.map(stitched, own)

    def call(*args):
        results = mapped(*jax.tree.map(with_others, in_specs, args))
        return multihost_utils.global_array_to_host_local_array(results, mesh, out_specs)

    return call
