"""The texts of the functions that a migrated module is given; see ``emitted``."""

from __future__ import annotations

ON_ONE_ROW = '''\
def on_one_row(fun):
    """Returns fun for a device's shard, one row: its axis is taken off, and put on the results."""

    @functools.wraps(fun)
    def on_shard(*args):
        args = jax.tree.map(lambda x: jax.numpy.squeeze(x, 0), args)
        return jax.tree.map(lambda x: jax.numpy.expand_dims(x, 0), fun(*args))

    return on_shard
'''

ON_ONE_ROW_ALONG = '''\
def on_one_row_along(fun, in_axes=0, out_axes=0):
    """Returns fun for a device's shard, one row along these axes, which fun does not have."""

    def take_off(x, axis):
        return x if axis is None else jax.numpy.squeeze(x, axis)

    def put_on(x, axis):
        return jax.numpy.asarray(x) if axis is None else jax.numpy.expand_dims(x, axis)

    @functools.wraps(fun)
    def on_shard(*args):
        return each_leaf(put_on, out_axes, fun(*each_leaf(take_off, in_axes, args)))

    return on_shard
'''

MAP_OWN_ROWS = '''\
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
            # Numbers and NumPy's arrays that are not cut are taken as they are.
            if spec == jax.P() and not isinstance(x, jax.Array):
                return x
            return multihost_utils.host_local_array_to_global_array(x, mesh, spec)

        return jax.tree.map(stitched, own)

    def call(*args):
        results = mapped(*jax.tree.map(with_others, in_specs, args))
        return multihost_utils.global_array_to_host_local_array(results, mesh, out_specs)

    return call
'''

EACH_LEAF = '''\
def each_leaf(change, axes, tree):
    """Applies change(leaf, axis); an axis may stand for a whole subtree, and None for no axis."""
    return jax.tree.map(
        lambda axis, part: jax.tree.map(lambda leaf: change(leaf, axis), part),
        axes,
        tree,
        is_leaf=lambda axis: axis is None,
    )
'''

_ONE_ROW_EACH = '''\
def one_row_each(
    fun, axis_name=None, in_axes=0, out_axes=0, static_argnums=(), devices=None, backend=None
):
    """Returns fun mapped over rows, one a device, for jax.jit: what jax.pmap did, on shard_map."""
    name = "rows" if axis_name is None else axis_name
    static = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)

    def specs(axes):
        def spec(axis):
            return jax.sharding.PartitionSpec(*() if axis is None else (*[None] * axis, name))

        return jax.tree.map(spec, axes, is_leaf=lambda axis: axis is None)

    def from_front(axes):
        # Rows along an axis that counts from the end are in front while they are mapped.
        return jax.tree.map(lambda axis: max(axis, 0), axes)

    def take_off(x, axis):
        return x if axis is None else jax.numpy.squeeze(x, axis)

    def put_back(x, axis):
        return jax.numpy.asarray(x) if axis is None else jax.numpy.expand_dims(x, axis)

    def mapped(*args, **kwargs):
        axes = in_axes
        if isinstance(axes, (tuple, list)):
            axes = tuple(axis for i, axis in enumerate(axes) if i not in static)
        # Keyword arguments are mapped over their first axis.
        axes = (axes, 0)
        rows = (tuple(arg for i, arg in enumerate(args) if i not in static), kwargs)
        rows = each_leaf(
            lambda x, axis: jax.numpy.moveaxis(x, axis, 0) if (axis or 0) < 0 else x, axes, rows
        )
        axes, out = from_front(axes), from_front(out_axes)
        sizes = each_leaf(lambda x, axis: () if axis is None else x.shape[axis], axes, rows)
        chosen = jax.devices(backend) if devices is None else list(devices)
        # Without rows, each device does the same.
        size = next(iter(jax.tree.leaves(sizes)), len(chosen))

        def body(rows):
            given, named = each_leaf(take_off, axes, rows)
            given = iter(given)
            whole = [arg if i in static else next(given) for i, arg in enumerate(args)]
            return each_leaf(put_back, out, fun(*whole, **named))

@OVER_DEVICES@
        return each_leaf(
            lambda x, axis: jax.numpy.moveaxis(x, 0, axis) if (axis or 0) < 0 else x,
            out_axes,
            results,
        )

    mapped.__name__ = getattr(fun, "__name__", "mapped")
    return mapped
'''

ONE_ROW_EACH = _ONE_ROW_EACH.replace(
    "@OVER_DEVICES@\n",
    """\
        if jax.device_count() > jax.local_device_count() and size != len(chosen):
            raise ValueError(f"{size} rows for the {len(chosen)} devices of all processes")
        results = jax.shard_map(
            body,
            mesh=jax.sharding.Mesh(chosen[:size], (name,)),
            in_specs=(specs(axes),),
            out_specs=specs(out),
            check_vma=False,  # fun reduces its gradients over the axis itself, as under pmap
        )(rows)
""",
)

SIMPLE_ROWS = '''\
def one_row_each(fun, axis_name=None, devices=None, backend=None):
    """Returns fun mapped over rows, one a device, for jax.jit: what jax.pmap did, on shard_map."""
    name = "rows" if axis_name is None else axis_name
    spec = jax.sharding.PartitionSpec(name)

    def mapped(*args, **kwargs):
        def on_one_device(args, kwargs):
            args, kwargs = jax.tree.map(lambda x: jax.numpy.squeeze(x, 0), (args, kwargs))
            return jax.tree.map(lambda x: jax.numpy.expand_dims(x, 0), fun(*args, **kwargs))

        chosen = jax.devices(backend) if devices is None else list(devices)
        sizes = [x.shape[0] for x in jax.tree.leaves((args, kwargs))]
        size = sizes[0] if sizes else len(chosen)
        if jax.device_count() > jax.local_device_count() and size != len(chosen):
            raise ValueError(f"{size} rows for the {len(chosen)} devices of all processes")
        return jax.shard_map(
            on_one_device,
            mesh=jax.sharding.Mesh(chosen[:size], (name,)),
            in_specs=spec,
            out_specs=spec,
            check_vma=False,  # fun reduces its gradients over the axis itself, as under pmap
        )(args, kwargs)

    mapped.__name__ = getattr(fun, "__name__", "mapped")
    return mapped
'''

OVER_ONE_MESH = '''\
def over_one_mesh(body, rows, name, size, devices, in_specs, out_specs):
    """Maps body over an axis of the mesh that it shares with the maps around and inside it."""

    def shard_map(name, mesh=None):
        return jax.shard_map(
            body,
            mesh=mesh,
            axis_names={name},
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,  # body reduces its gradients over the axis itself, as under pmap
        )(rows)

    around = jax.sharding.get_abstract_mesh()
    if jax.sharding.AxisType.Manual in around.axis_types:
        if around.shape.get(name) != size:
            raise InnerAxisMet(name, size)
        return shard_map(name)
    inner = {}
    while True:
        shape = (size, *inner.values())
        used = numpy.array(devices[: numpy.prod(shape)]).reshape(shape)
        try:
            return shard_map(name, jax.sharding.Mesh(used, (name, *inner)))
        except InnerAxisMet as met:
            name_met, size_met = met.args
            if name_met in (name, *inner):
                raise ValueError(f"two maps, one in the other, over axis {name_met!r}") from None
            inner[name_met] = size_met
'''

INNER_AXIS_MET = '''\
class InnerAxisMet(Exception):
    """Another map was met inside: name and size of the axis that the mesh needs for it."""
'''

NESTED_ROWS = _ONE_ROW_EACH.replace(
    "@OVER_DEVICES@\n",
    """\
        results = over_one_mesh(body, rows, name, size, chosen, (specs(axes),), specs(out))
""",
).replace(
    '    name = "rows" if axis_name is None else axis_name\n',
    '    name = f"rows {id(fun)}" if axis_name is None else axis_name\n',
)

REMEMBERED_ROWS = """\
@functools.lru_cache
def remembered_rows(fun, options, tree):
    return one_row_each(fun, **jax.tree.unflatten(tree, options))
"""

KEPT_ROWS = '''\
def kept_one_row_each(fun, **options):
    """Returns one function for the same fun and options, so that jax.jit compiles it once."""
    leaves, tree = jax.tree.flatten(options, is_leaf=lambda option: option is None)
    try:
        return remembered_rows(fun, tuple(leaves), tree)
    except TypeError:  # something that cannot be a key
        return one_row_each(fun, **options)
'''

_OPTIONS_OF_PMAP = """\
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
"""

MAP_ROWS = (
    "def map_rows(\n"
    + _OPTIONS_OF_PMAP
    + '''\
):
    """Returns jax.jit of one_row_each, with the options of jax.pmap."""
    del axis_size  # the arguments tell it
    static = static_broadcasted_argnums
    mapped = kept_one_row_each(
        fun,
        axis_name=axis_name,
        in_axes=in_axes,
        out_axes=out_axes,
        static_argnums=static,
        devices=devices,
        backend=backend,
    )
    return jax.jit(mapped, static_argnums=static, donate_argnums=donate_argnums)
'''
)

MAP_ROWS_OF_PROCESSES = (
    "def map_rows(\n"
    + _OPTIONS_OF_PMAP
    + '''\
):
    """Maps this process's rows over the devices of all processes, with the options of jax.pmap."""
    del axis_size  # the arguments tell it
    name = "rows" if axis_name is None else axis_name
    static = static_broadcasted_argnums
    positions = {static} if isinstance(static, int) else set(static)

    @functools.lru_cache
    def over_devices():
        # Not before the first call, since it starts JAX's backend.
        chosen = devices
        if chosen is None:
            processes = range(jax.process_count())
            chosen = [d for i in processes for d in jax.local_devices(i, backend=backend)]
        mapped = kept_one_row_each(
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
        return jax.sharding.PartitionSpec(
            *() if axis is None else (*[None] * (axis % x.ndim), name)
        )

    def call(*args, **kwargs):
        jitted, is_local, mesh = over_devices()
        if is_local:
            return jitted(*args, **kwargs)

        def stitched(x, axis):
            if axis is None and not isinstance(x, jax.Array):
                return x
            return multihost_utils.host_local_array_to_global_array(x, mesh, spec(x, axis))

        def own_rows(x, axis):
            return multihost_utils.global_array_to_host_local_array(x, mesh, spec(x, axis))

        axes = in_axes if isinstance(in_axes, (tuple, list)) else [in_axes] * len(args)
        whole = [
            arg if i in positions else each_leaf(stitched, axes[i], arg)
            for i, arg in enumerate(args)
        ]
        results = jitted(*whole, **each_leaf(stitched, 0, kwargs))
        return each_leaf(own_rows, out_axes, results)

    call.__name__ = getattr(fun, "__name__", "mapped")
    return call
'''
)

DEVICE_PUT_REPLICATED = '''\
def device_put_replicated(x, devices):
    """Puts a copy of every leaf on each device, stacked: what jax.device_put_replicated did."""
    return device_put_sharded([x] * len(devices), devices)
'''

REPLICATE_ROWS = '''\
def replicate_rows(tree, devices=None, axis_name="rows"):
    """Puts a copy of every leaf on each device, stacked, on the mesh of the maps."""
    devices = devices or jax.local_devices()
    mesh = jax.sharding.Mesh(devices, (axis_name,))

    def put(x):
        rows = [jax.device_put(jax.numpy.asarray(x)[None], device) for device in devices]
        sharding = jax.sharding.NamedSharding(mesh, jax.P(axis_name))
        shape = (len(rows), *rows[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, rows)

    return jax.tree.map(put, tree)
'''

DEVICE_PUT_SHARDED = '''\
def device_put_sharded(shards, devices, axis_name="rows"):
    """Puts each shard on its device, stacked: what jax.device_put_sharded did."""
    if len(shards) != len(devices):
        raise ValueError(f"{len(shards)} shards for {len(devices)} devices")
    mesh = jax.sharding.Mesh(devices, (axis_name,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(axis_name))

    def put(*leaves):
        rows = [
            jax.device_put(jax.numpy.asarray(leaf)[None], device)
            for leaf, device in zip(leaves, devices)
        ]
        shape = (len(devices), *rows[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, rows)

    return jax.tree.map(put, *shards)
'''

FIRST_ROW = '''\
def first_row(tree):
    """Returns x[0] of every leaf as its device has it, where x[0] would gather all rows first."""

    def first(x):
        near = x.addressable_shards[0].data if isinstance(x, jax.Array) else x
        return near[0] if near.shape[1:] == x.shape[1:] else x[0]

    return jax.tree.map(first, tree)
'''
