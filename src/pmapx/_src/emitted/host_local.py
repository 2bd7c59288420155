"""``jax.shard_map`` for the host-local arrays of a multi-process program."""

import jax
from jax.experimental import multihost_utils


def host_local_shard_map(f, mesh, in_specs, out_specs, **options):
    """Returns jit(shard_map(f)) for the host-local arrays of each process."""
    specs = dict(in_specs=in_specs, out_specs=out_specs)
    mapped = jax.shard_map(f, mesh=mesh, **specs, check_vma=False)
    jitted = jax.jit(mapped, **options)
    to_global = multihost_utils.host_local_array_to_global_array
    to_local = multihost_utils.global_array_to_host_local_array

    def call(*args):
        results = jitted(*to_global(args, mesh, in_specs))
        return to_local(results, mesh, out_specs)

    return call
