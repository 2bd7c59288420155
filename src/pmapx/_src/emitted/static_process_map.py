"""``map_over_devices`` of ``leading_process_map`` with arguments that are static."""

import functools

import jax

from pmapx._src.emitted.leading_process_map import mapped_once


@functools.lru_cache
def with_static(fun, static):
    given = dict(static)
    return lambda *args, **kwargs: fun(*(given.get(i, x) for i, x in enumerate(args)), **kwargs)


def map_over_devices(
    fun,
    axis_name="devices",
    *,
    in_axes=0,
    out_axes=0,
    donate_argnums=(),
    static_broadcasted_argnums=(),
):
    """Maps fun over the devices of all processes; axis None means replicated.

    Arguments and results are host-local arrays, except for static arguments.
    """
    options = in_axes, out_axes, donate_argnums
    leaves, tree = jax.tree.flatten(options, is_leaf=lambda axis: axis is None)
    static_argnums = jax.tree.leaves(static_broadcasted_argnums)

    def call(*args, **kwargs):
        static = tuple((i, args[i]) for i in static_argnums)
        shards = (() if i in static_argnums else arg for i, arg in enumerate(args))
        mapped = mapped_once(with_static(fun, static), axis_name, tuple(leaves), tree)
        return mapped(*shards, **kwargs)

    return call
