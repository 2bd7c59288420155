"""The functions that a migrated module is given, each once and only where something uses it.

They are plain JAX: a reader of the migrated program has all that it does before him.
"""

from __future__ import annotations

ONE_ROW_EACH = '''\
def one_row_each(
    fun, axis_name=None, in_axes=0, out_axes=0, static_argnums=(), devices=None, backend=None
):
    """Returns fun mapped over rows, one a device, for jax.jit: what jax.pmap did, on shard_map."""
    name = "rows" if axis_name is None else axis_name
    static = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)

    def each(change, axes, tree):
        # An axis may stand for a whole subtree; None is one that is not mapped.
        return jax.tree.map(
            lambda axis, part: jax.tree.map(lambda x: change(x, axis), part),
            axes,
            tree,
            is_leaf=lambda axis: axis is None,
        )

    def spec(axis):
        if axis is not None and axis < 0:
            raise ValueError(f"axes count from the front here, and {axis} does not")
        return jax.sharding.PartitionSpec(*() if axis is None else (*[None] * axis, name))

    def specs(axes):
        return jax.tree.map(spec, axes, is_leaf=lambda axis: axis is None)

    def take_off(x, axis):
        return x if axis is None else jax.numpy.squeeze(x, axis)

    def put_back(x, axis):
        return jax.numpy.asarray(x) if axis is None else jax.numpy.expand_dims(x, axis)

    def mapped(*args, **kwargs):
        if jax.process_count() > 1:
            raise NotImplementedError("with several processes, the arguments must be global arrays")
        axes = in_axes
        if isinstance(axes, (tuple, list)):
            axes = tuple(axis for i, axis in enumerate(axes) if i not in static)
        # Keyword arguments are mapped over their first axis.
        axes = (axes, 0)
        rows = (tuple(arg for i, arg in enumerate(args) if i not in static), kwargs)
        sizes = each(lambda x, axis: () if axis is None else x.shape[axis], axes, rows)
        size = jax.tree.leaves(sizes)[0]
        chosen = jax.devices(backend) if devices is None else list(devices)
        mesh = jax.sharding.Mesh(chosen[:size], (name,))

        def body(rows):
            given, named = each(take_off, axes, rows)
            given = iter(given)
            whole = [arg if i in static else next(given) for i, arg in enumerate(args)]
            return each(put_back, out_axes, fun(*whole, **named))

        return jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(specs(axes),),
            out_specs=specs(out_axes),
            check_vma=False,  # fun reduces its gradients over the axis itself, as under pmap
        )(rows)

    mapped.__name__ = getattr(fun, "__name__", "mapped")
    return mapped
'''

KEPT_ROWS = """\
# Made anew in each call of a function around it, yet compiled once, as it was with jax.pmap.
kept_one_row_each = functools.lru_cache(one_row_each)
"""

MAP_ROWS = '''\
def map_rows(
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
    """Returns jax.jit of one_row_each, with the options of jax.pmap."""
    del axis_size  # the arguments tell it
    static = static_broadcasted_argnums
    mapped = one_row_each(fun, axis_name, in_axes, out_axes, static, devices, backend)
    return jax.jit(mapped, static_argnums=static, donate_argnums=donate_argnums)
'''

DEVICE_PUT_REPLICATED = '''\
def device_put_replicated(x, devices):
    """Puts a copy of every leaf on each device, stacked: what jax.device_put_replicated did."""
    return device_put_sharded([x] * len(devices), devices)
'''

DEVICE_PUT_SHARDED = '''\
def device_put_sharded(shards, devices):
    """Puts each shard on its device, stacked: what jax.device_put_sharded did."""
    if len(shards) != len(devices):
        raise ValueError(f"{len(shards)} shards for {len(devices)} devices")
    mesh = jax.sharding.Mesh(devices, ("rows",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))

    def put(*leaves):
        rows = [
            jax.device_put(jax.numpy.asarray(leaf)[None], device)
            for leaf, device in zip(leaves, devices)
        ]
        shape = (len(devices), *rows[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, rows)

    return jax.tree.map(put, *shards)
'''

TEXTS = {
    "device_put_sharded": DEVICE_PUT_SHARDED,
    "device_put_replicated": DEVICE_PUT_REPLICATED,
    "one_row_each": ONE_ROW_EACH,
    "kept_one_row_each": KEPT_ROWS,
    "map_rows": MAP_ROWS,
}
NEEDS = {
    "kept_one_row_each": ("one_row_each",),
    "map_rows": ("one_row_each",),
    "device_put_replicated": ("device_put_sharded",),
}
# What each form of a plan calls, and what it calls if the same function is mapped again and again.
FUNCTION_OF = {
    ("jit", False): "one_row_each",
    ("jit", True): "kept_one_row_each",
    ("decorator", False): "one_row_each",
    ("name", False): "map_rows",
}


def with_needs(wanted: set[str]) -> list[str]:
    """Returns the functions to write, those that others use before them.

    >>> with_needs({"map_rows"})
    ['one_row_each', 'map_rows']
    """
    whole = wanted | {needed for name in wanted for needed in NEEDS.get(name, ())}
    return [name for name in TEXTS if name in whole]


def text(name: str, indent: str) -> str:
    """Returns a function's text in the file's own indentation."""
    lines = []
    for line in TEXTS[name].splitlines(keepends=True):
        depth = (len(line) - len(line.lstrip(" "))) // 4
        lines.append(indent * depth + line.lstrip(" "))
    return "".join(lines)
