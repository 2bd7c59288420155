"""``jax.shard_map`` for the host-local arrays of a multi-process program."""

import functools

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


def host_local_map(f, mesh, in_specs, out_specs, keep_global=True, **options):
    """Returns jit(shard_map(f)) for the host-local arrays of each process, and numbers.

    A function that makes the mesh is called at the first call: it initializes JAX's backend.
    Results with the spec P() stay global by default, as arguments may be.
    """
    to_global = multihost_utils.host_local_array_to_global_array
    to_local = multihost_utils.global_array_to_host_local_array

    @functools.cache
    def made():
        over = mesh if isinstance(mesh, jax.sharding.Mesh) else mesh()
        specs = dict(in_specs=in_specs, out_specs=out_specs)
        return over, jax.jit(jax.shard_map(f, mesh=over, **specs, check_vma=False), **options)

    @functools.wraps(f)
    def call(*args):
        over, jitted = made()
        if jax.process_count() == 1:
            return jitted(*args)

        def leaf(x, spec):
            return x if isinstance(x, (int, float, complex)) else to_global(x, over, spec)

        def argument(spec, part):
            return jax.tree.map(lambda x: leaf(x, spec), part)

        def result(spec, part):
            return part if keep_global and spec == jax.P() else to_local(part, over, spec)

        specs = in_specs if type(in_specs) is tuple else [in_specs] * len(args)
        results = jitted(*map(argument, specs, args))
        if type(out_specs) is not tuple:
            return result(out_specs, results)
        return tuple(map(result, out_specs, results))

    return call
