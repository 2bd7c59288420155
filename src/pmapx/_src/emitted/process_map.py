"""``jax.pmap`` on ``shard_map`` in a multi-process program, for host-local shards."""

import functools

import jax
from jax.experimental import multihost_utils

from pmapx._src.emitted.device_map import mapped_once
from pmapx._src.emitted.shards import each_leaf


def map_over_devices(
    fun,
    axis_name=None,
    *,
    in_axes=0,
    out_axes=0,
    static_broadcasted_argnums=(),
    devices=None,
    backend=None,
    axis_size=None,
    donate_argnums=(),
):
    """Maps host-local shards over all devices, with the options of pmap."""
    del axis_size  # taken from the arguments
    name = "devices" if axis_name is None else axis_name
    static = static_broadcasted_argnums
    positions = {static} if isinstance(static, int) else set(static)

    @functools.lru_cache
    def over_devices():
        # At the first call, since it initializes JAX's backend.
        chosen = devices
        if chosen is None:
            processes = range(jax.process_count())
            chosen = [d for i in processes for d in jax.local_devices(i, backend=backend)]
        mapped = mapped_once(
            fun,
            axis_name=name,
            in_axes=in_axes,
            out_axes=out_axes,
            static_argnums=static,
            devices=chosen,
        )
        jitted = jax.jit(mapped, static_argnums=static, donate_argnums=donate_argnums)
        is_local = all(d.process_index == jax.process_index() for d in chosen)
        return jitted, is_local, jax.sharding.Mesh(chosen, (name,))

    def spec(x, axis):
        return jax.P(*() if axis is None else (*[None] * (axis % x.ndim), name))

    def call(*args, **kwargs):
        jitted, is_local, mesh = over_devices()
        if is_local:
            return jitted(*args, **kwargs)

        def stitched(x, axis):
            if axis is None and not isinstance(x, jax.Array):
                return x
            return multihost_utils.host_local_array_to_global_array(x, mesh, spec(x, axis))

        def host_local(x, axis):
            return multihost_utils.global_array_to_host_local_array(x, mesh, spec(x, axis))

        axes = in_axes if isinstance(in_axes, (tuple, list)) else [in_axes] * len(args)
        global_args = [
            arg if i in positions else each_leaf(stitched, axes[i], arg)
            for i, arg in enumerate(args)
        ]
        results = jitted(*global_args, **each_leaf(stitched, 0, kwargs))
        return each_leaf(host_local, out_axes, results)

    call.__name__ = getattr(fun, "__name__", "mapped")
    return call
