"""A jitted function traced again, with its mesh replaced by one of other devices.

Its arguments and outputs keep the specs that ``in_shardings`` and ``out_shardings`` give them.

The functions that reach a mesh are copied, with the other mesh in its place
(``functions_on_mesh``).
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Jaxpr, Literal, Var
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from pmapx._src import errors
from pmapx._src.audit import donation
from pmapx._src.audit.topology.functions_on_mesh import on_mesh
from pmapx._src.audit.topology.growing_arguments import Given, Scale, exponents_of
from pmapx._src.audit.topology.retraced import Retraced, divided, explained, grown_names, grown_size
from pmapx._src.mesh.device_mesh import grid
from pmapx._src.mesh.partition_specs import entry_axes
from pmapx._src.replication.jaxprs import subjaxprs
from pmapx._src.replication.traced_program import shard_maps
from pmapx._src.trees import names as describe


class Placed(NamedTuple):
    """Arguments and outputs on a mesh, and which outputs take the place of which arguments."""

    mesh: Mesh
    leaves: Sequence[jax.ShapeDtypeStruct]
    outputs: Sequence[NamedSharding | None]
    carried: Mapping[int, int]


def traced_on(
    jitted: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    devices: Sequence[jax.Device],
    scale: Scale | None = None,
    reshard: Callable[[Placed], Placed] = lambda placed: placed,
) -> Retraced:
    """Traces a jitted function for other devices, and with other shardings if asked to."""
    function = describe.function_name(jitted)
    here = jitted.trace(*args, **kwargs)
    infos, _ = here.args_info
    dynamic = dynamic_positions(args, infos)
    asked = shardings_asked_for(jitted, args, dynamic, kwargs)
    shardings = [*asked.arguments, *asked.outputs]
    old = mesh_of(here, (args, kwargs), function, shardings, (Mesh, AbstractMesh))
    mesh = grown(old, devices, function)
    taken = tuple(args[position] for position in dynamic)
    leaves, tree = jax.tree.flatten((taken, kwargs))
    paths = describe.leaf_paths((taken, kwargs), dynamic, describe.parameter_names(jitted))
    taken_specs = specs_in_shard_maps(here.jaxpr.jaxpr)[-len(leaves) :] if leaves else []
    own_specs = [
        _own_spec(leaf, wanted, mesh) for leaf, wanted in zip(leaves, asked.arguments, strict=True)
    ]
    given = [
        _given(path, leaf, own if spec is None else spec, mesh.axis_names[0])
        for path, leaf, own, spec in zip(paths, leaves, own_specs, taken_specs, strict=True)
    ]
    carried = donation.carried((taken, kwargs), here.out_info)
    size = old.shape[mesh.axis_names[0]]
    exponents = exponents_of(here.jaxpr, mesh.axis_names[0], size, given, carried, scale)
    target_leaves = [
        _leaf_on_target(leaf, each, found, spec if own is None else own, (size, mesh), function)
        for leaf, each, found, own, spec in zip(
            leaves, given, exponents, own_specs, taken_specs, strict=True
        )
    ]
    outputs = [
        None if wanted is None else _on(mesh, wanted.spec, function) for wanted in asked.outputs
    ]
    placed = reshard(Placed(mesh, target_leaves, outputs, dict(carried)))
    dynamic_args, named = jax.tree.unflatten(tree, placed.leaves)
    fun = on_mesh(jitted.__wrapped__, mesh)

    def with_static(*dynamic_args: Any, **kwargs: Any) -> Any:
        return fun(*_with_dynamic(args, dynamic, dynamic_args), **kwargs)

    with_static.__name__ = with_static.__qualname__ = function
    donated = [any(leaf.donated for leaf in jax.tree.leaves(info)) for info in infos]
    out_tree = jax.tree.structure(here.out_info)
    again = jax.jit(
        with_static,
        donate_argnums=tuple(index for index, is_donated in enumerate(donated) if is_donated),
        out_shardings=jax.tree.unflatten(out_tree, placed.outputs) if any(placed.outputs) else None,
    )
    larger = grown_names(
        paths, [each.shape for each in given], [leaf.shape for leaf in target_leaves]
    )
    with (
        _in_place_of_context(mesh),
        _as_devices_of_jax(devices),
        explained(function, len(devices), larger),
    ):
        traced = again.trace(*dynamic_args, **named)
    for eqn in shard_maps(traced.jaxpr.jaxpr):
        shape = dict(eqn.params["mesh"].shape)
        if shape != dict(mesh.shape):
            problem = f"a shard_map in it is still over the mesh {shape}"
            raise errors.CannotRebuild(function, problem)
    return Retraced(traced, mesh, _with_dynamic(args, dynamic, dynamic_args), named, larger)


def _with_dynamic(
    args: Sequence[Any], dynamic: Sequence[int], values: Sequence[Any]
) -> tuple[Any, ...]:
    """Returns the arguments with other values at the positions that are not static."""
    replaced = dict(zip(dynamic, values, strict=True))
    return tuple(replaced.get(position, arg) for position, arg in enumerate(args))


def has_mesh(
    jitted: Any, traced: jax.stages.Traced, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Returns whether a jitted function runs on a mesh of several devices."""
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves((args, kwargs))]
    if any(sharding is not None and sharding.num_devices > 1 for sharding in shardings):
        return True
    if any(True for _ in shard_maps(traced.jaxpr.jaxpr)):
        return True
    dynamic = dynamic_positions(args, traced.args_info[0])
    asked = shardings_asked_for(jitted, args, dynamic, kwargs)
    wanted = [*asked.arguments, *asked.outputs]
    return any(sharding is not None and sharding.num_devices > 1 for sharding in wanted)


@contextlib.contextmanager
def _as_devices_of_jax(devices: Sequence[jax.Device]) -> Iterator[None]:
    """Has ``jax.devices()`` return other devices, for functions that make their mesh while traced.

    JAX itself does not use these names.
    """
    make_mesh = jax.make_mesh

    def mesh_there(*args: Any, **options: Any) -> Mesh:
        mesh = make_mesh(*args, **{**options, "devices": options.get("devices") or list(devices)})
        if options.get("devices") or mesh.size != len(devices):
            return mesh
        # In the order of the arguments' mesh: that of ``make_mesh`` follows the links of a pod.
        return Mesh(grid(devices, mesh.axis_sizes), mesh.axis_names, axis_types=mesh.axis_types)

    answers: dict[str, Callable[..., Any]] = {
        "make_mesh": mesh_there,
        "devices": lambda *backend, **_: list(devices),
        "local_devices": lambda *_, **__: list(devices),
        "device_count": lambda *backend, **_: len(devices),
        "local_device_count": lambda *backend, **_: len(devices),
    }
    before = {name: getattr(jax, name) for name in answers}
    for name, answer in answers.items():
        setattr(jax, name, answer)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(jax, name, function)


def _in_place_of_context(mesh: Mesh) -> contextlib.AbstractContextManager[Any]:
    """Returns a context with ``mesh`` in place of the context mesh, if there is one."""
    is_set = not jax.sharding.get_abstract_mesh().empty
    return jax.set_mesh(mesh) if is_set else contextlib.nullcontext()


def mesh_of(
    traced: jax.stages.Traced,
    arguments: Any,
    function: str,
    more_shardings: Sequence[Any] = (),
    kinds: tuple[type, ...] = (Mesh,),
) -> Any:
    """Returns the mesh of a ``shard_map`` in a trace, of an argument, or of another sharding."""
    passed = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments)]
    named = [s.mesh for s in [*passed, *more_shardings] if isinstance(s, NamedSharding)]
    mapped = [eqn.params["mesh"] for eqn in shard_maps(traced.jaxpr.jaxpr)]
    for mesh in [*mapped, *named]:
        if isinstance(mesh, kinds):
            return mesh
    raise errors.CannotRebuild(function, "neither a shard_map in it nor an argument has a mesh")


def grown(old: Mesh | AbstractMesh, devices: Sequence[jax.Device], function: str) -> Mesh:
    """Returns a mesh of the same axes on other devices; the first axis grows."""
    names = old.axis_names
    inner = [old.shape[name] for name in names[1:]]
    if len(devices) % math.prod(inner):
        raise errors.UnevenTopology(function, math.prod(inner), len(devices))
    return Mesh(grid(devices, (-1, *inner)), names, axis_types=old.axis_types)


def dynamic_positions(args: Sequence[Any], infos: Sequence[Any]) -> list[int]:
    """Returns the positions of the arguments that ``jit`` traces; others are static."""
    positions: list[int] = []
    for position, arg in enumerate(args):
        if len(positions) < len(infos) and _fits(arg, infos[len(positions)]):
            positions.append(position)
    return positions


def _fits(arg: Any, info: Any) -> bool:
    trees: list[Any] = [jax.tree.structure(arg), jax.tree.structure(info)]
    if trees[0] != trees[1]:
        return False
    pairs = zip(jax.tree.leaves(arg), jax.tree.leaves(info), strict=True)
    return all(_is_array(a) and np.shape(a) == i.shape for a, i in pairs)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)


def _on(mesh: Mesh, spec: PartitionSpec, function: str) -> NamedSharding:
    try:
        return NamedSharding(mesh, spec)
    except ValueError:
        problem = f"it has a sharding {spec}, with axes that its mesh {dict(mesh.shape)} lacks"
        raise errors.CannotRebuild(function, problem) from None


def _own_spec(leaf: Any, wanted: NamedSharding | None, mesh: Mesh) -> PartitionSpec | None:
    """Returns the spec of an argument in terms of a mesh; None if it has none on that mesh."""
    sharding = getattr(leaf, "sharding", None) if wanted is None else wanted
    if not isinstance(sharding, NamedSharding):
        return None
    own = sharding.mesh.axis_names
    if set(own) <= set(mesh.axis_names):
        return sharding.spec
    if len(own) != len(mesh.axis_names):
        return None
    # Placed on its own mesh, as a leading device axis often is: the axes have other names.
    renamed = dict(zip(own, mesh.axis_names, strict=True))
    return PartitionSpec(
        *(tuple(renamed[axis] for axis in entry_axes(entry)) or None for entry in sharding.spec)
    )


def _given(path: str, leaf: Any, spec: PartitionSpec | None, axis: Any) -> Given:
    """Returns an argument as it is here; dimensions that the axis shards may grow."""
    shape = np.shape(leaf)
    entries = [*(spec or ()), *[None] * len(shape)][: len(shape)]
    return Given(path, shape, tuple(None if axis in entry_axes(entry) else 0 for entry in entries))


def _leaf_on_target(
    leaf: Any,
    given: Given,
    exponents: Sequence[int],
    spec: PartitionSpec | None,
    axis: tuple[int, Mesh],
    function: str,
) -> jax.ShapeDtypeStruct:
    """Returns an argument's shape and sharding on other devices."""
    aval = leaf if hasattr(leaf, "dtype") else jax.typeof(leaf)
    size, mesh = axis
    count = mesh.shape[mesh.axis_names[0]]
    shape = list(aval.shape)
    for k, is_sharded in enumerate(exponent is None for exponent in given.exponents):
        if exponents[k] > 0:
            shape[k] = grown_size(shape[k], size, count, exponents[k])
        elif is_sharded:
            divided(function, given.path, shape[k], count)
    return jax.ShapeDtypeStruct(
        tuple(shape),
        aval.dtype,
        weak_type=bool(getattr(aval, "weak_type", False)),
        sharding=None if spec is None else _on(mesh, spec, function),
    )


def specs_in_shard_maps(jaxpr: Jaxpr) -> list[PartitionSpec | None]:
    """Returns for each input of a jaxpr the spec by which a ``shard_map`` takes it, if any does."""
    found: dict[Var, PartitionSpec] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "shard_map":
            specs: Sequence[PartitionSpec | None] = eqn.params["in_specs"]
        else:
            called = [sub for sub in subjaxprs(eqn.params) if len(sub.invars) == len(eqn.invars)]
            specs = specs_in_shard_maps(called[0]) if called else []
        for var, spec in zip(eqn.invars, specs, strict=False):
            if spec is not None and not isinstance(var, Literal):
                found.setdefault(var, spec)
    return [found.get(var) for var in jaxpr.invars]


class Asked(NamedTuple):
    """The sharding of each argument and output; None if the options of ``jit`` give none."""

    arguments: list[NamedSharding | None]
    outputs: list[NamedSharding | None]


def shardings_asked_for(
    jitted: Any, args: Sequence[Any], dynamic: Sequence[int], kwargs: dict[str, Any]
) -> Asked:
    """Reads ``in_shardings`` and ``out_shardings`` off a jitted function, leaf by leaf.

    >>> import numpy as np
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> sharded = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), P("i"))
    >>> f = jax.jit(lambda x, y: (x, y), in_shardings=(sharded, None))
    >>> asked = shardings_asked_for(f, (np.ones(8), np.ones(8)), (0, 1), {})
    >>> asked.arguments[0].spec == P("i"), asked.arguments[1]
    (True, None)
    """

    def call(values: Sequence[Any], named: dict[str, Any]) -> Any:
        return jitted(*_with_dynamic(args, dynamic, values), **named)

    taken = [args[position] for position in dynamic]
    closed = jax.make_jaxpr(call)(taken, kwargs)
    count = len(jax.tree.leaves((taken, kwargs)))
    # The equation that calls it gives all outputs of the jaxpr.
    eqn = next((eqn for eqn in reversed(closed.jaxpr.eqns) if "in_shardings" in eqn.params), None)
    if eqn is None or list(eqn.outvars) != list(closed.jaxpr.outvars):
        return Asked([None] * count, [None] * len(closed.jaxpr.outvars))
    # Constants come before the arguments in newer releases.
    given = dict(zip(eqn.invars, eqn.params["in_shardings"], strict=True))
    return Asked(
        [_named(given.get(var)) for var in closed.jaxpr.invars[-count:] if count],
        [_named(wanted) for wanted in eqn.params["out_shardings"]],
    )


def _named(sharding: Any) -> NamedSharding | None:
    return sharding if isinstance(sharding, NamedSharding) else None
