"""``jax.shard_map`` for the host-local arrays of a multi-process program."""

import jax
from jax.experimental import multihost_utils


def host_local_shard_map(f, mesh, in_specs, out_specs, **options):
    """Returns jit(shard_map(f)) for the host-local arrays of each process.

    Results with the spec P() stay global, as arguments may be.
    """
    specs = dict(in_specs=in_specs, out_specs=out_specs)
    mapped = jax.shard_map(f, mesh=mesh, **specs, check_vma=False)
    jitted = jax.jit(mapped, **options)
    if jax.process_count() == 1:
        return jitted
    to_global = multihost_utils.host_local_array_to_global_array
    to_local = multihost_utils.global_array_to_host_local_array

    def result(spec, part):
        return part if spec == jax.P() else to_local(part, mesh, spec)

    def call(*args):
        results = jitted(*to_global(args, mesh, in_specs))
        if type(out_specs) is not tuple:
            return result(out_specs, results)
        return tuple(map(result, out_specs, results))

    return call
