"""The program of one signature: traced and compiled once, wherever its inputs are placed."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from pmapx._src import errors, fastpath
from pmapx._src.mesh import process_shards
from pmapx._src.mesh.context_mesh import context_of
from pmapx._src.multihost import host_local
from pmapx._src.replication import shard_map_body
from pmapx._src.spmd import axes
from pmapx._src.spmd.axes import Axis, MappedAxis, Mapping
from pmapx._src.spmd.partitioning import Partitioned
from pmapx._src.trees import names
from pmapx._src.trees.signature import Signature, program_tree


class Program:
    """A partitioned function as a jitted function of the user's arguments.

    It has the attributes of ``Partitioned``, the ``mapping``, the ``jitted`` function, which takes
    what ``arguments`` returns, and the ``tree`` of a call's dynamic arguments.
    """

    def __init__(
        self,
        partitioned: Partitioned,
        mapping: Mapping,
        signature: Signature,
        jitted: Callable[..., Any],
    ) -> None:
        self.mesh = partitioned.mesh
        self.mapped = partitioned.mapped
        self.in_shardings = partitioned.in_shardings
        self.as_shards = partitioned.as_shards
        self.mapping = mapping
        self.jitted: Any = jitted
        self.tree = signature.tree
        self._tree = program_tree(signature)

    def arguments(self, leaves: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the leaves of a call's arguments as ``jitted`` takes them."""
        args, kwargs = jax.tree.unflatten(self._tree, leaves)
        return args, kwargs

    def trace(self) -> jax.stages.Traced:
        """Traces it for inputs in their shardings, whatever mesh is set around the call."""
        args, kwargs = self.arguments(self.in_shapes())
        with context_of(self.mesh):
            traced: jax.stages.Traced = self.jitted.trace(*args, **kwargs)
        return traced

    def in_shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Returns the shapes and shardings of the leaves as the program takes them."""
        shapes = []
        for leaf, sharding in zip(self.mapping.leaves, self.in_shardings, strict=True):
            shape = leaf.shape
            if self.as_shards and sharding is not None:
                shape = sharding.shard_shape(shape)
                sharding = NamedSharding(sharding.mesh, PartitionSpec())
            shapes.append(
                jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=leaf.weak_type, sharding=sharding)
            )
        return shapes

    def out_shardings(
        self, out_tree: jax.tree_util.PyTreeDef, leaves: Sequence[Any]
    ) -> list[NamedSharding]:
        """Returns the sharding of each leaf of the result, given those or their types."""
        levels = self.mapping.levels
        return [
            NamedSharding(self.mesh, axes.out_spec(levels, out_axes))
            for out_axes in _out_axes(levels, out_tree, leaves)
        ]

    def lower(self, traced: jax.stages.Traced, **options: Any) -> jax.stages.Lowered:
        with context_of(self.mesh):
            return traced.lower(**options)


class Executable:
    """A compiled program, the shardings of its inputs, and the warnings that its callers get."""

    def __init__(
        self,
        compiled: jax.stages.Compiled,
        program: Program,
        warnings: Sequence[errors.PmapxWarning],
    ) -> None:
        """Takes the shardings of the program, or XLA's choice if they are None."""
        self.compiled = compiled
        self.warnings = warnings
        self.program = program
        self.mesh = program.mesh
        self.in_shardings: Sequence[Any] = program.in_shardings
        if any(sharding is None for sharding in self.in_shardings):
            self.in_shardings = jax.tree.leaves(
                compiled.input_shardings, is_leaf=lambda x: x is None
            )

    def run(self, leaves: Sequence[Any]) -> Any:
        """Runs it on the leaves of its arguments, in their shardings."""
        args, kwargs = self.program.arguments(leaves)
        try:
            return self.compiled(*args, **kwargs)
        except ValueError as error:
            if "input layouts that disagree" not in str(error):
                raise
        # JAX 0.10 mistakes the layout of committed 4-bit arrays; a jit does not compare it.
        return self.run_jitted(list(map(jax.device_put, leaves, self.in_shardings)))

    def run_jitted(self, leaves: Sequence[Any]) -> Any:
        """Runs the jitted function in place of what was compiled of it."""
        args, kwargs = self.program.arguments(leaves)
        with context_of(self.mesh):
            return self.program.jitted(*args, **kwargs)

    @functools.cached_property
    def on_local_devices(self) -> fastpath.LocalProgram:
        """The program of shards as the dispatch runs it on this process's devices."""
        return fastpath.LocalProgram(
            self.compiled,
            tuple(process_shards.local_mesh(self.mesh).devices.flat),
            tuple(map(host_local.local_sharding, self.in_shardings)),
        )


def may_lose_values(mapping: Mapping) -> bool:
    """Whether the user gave any output ``out_axes=None``."""
    stated = [level.out_axes for level in mapping.levels]
    return None in jax.tree.leaves(stated, is_leaf=lambda x: x is None)


def varying_outputs(
    traced: jax.stages.Traced, mapping: Mapping, *, as_shards: bool = False
) -> Iterator[errors.PmapxWarning]:
    """Yields a warning for each output with ``out_axes=None`` that may differ between devices.

    The specs of a program of shards do not show which arguments vary; ``mapping`` does.
    """
    if not may_lose_values(mapping):
        return
    levels = mapping.levels
    varying = mapping.varying_axes() if as_shards else None
    variations = shard_map_body.shard_map_outputs(traced.jaxpr, varying, trust_unknown=True)
    if variations is None:
        return
    out_tree, avals = fastpath.out_tree(traced), traced.jaxpr.out_avals
    all_out_axes = _out_axes(levels, out_tree, avals)
    for index, (variation, out_axes) in enumerate(zip(variations, all_out_axes, strict=True)):
        for level, axis in zip(levels, out_axes, strict=True):
            if axis is None and level.mesh_axis in variation.axes:
                output = names.output(_out_paths(traced, out_tree)[index])
                since = _origin(variation.since, traced, mapping)
                yield errors.VaryingOutput(mapping.names.function, output, level.name, since)


def _out_paths(traced: jax.stages.Traced, out_tree: jax.tree_util.PyTreeDef) -> list[names.KeyPath]:
    try:
        result = traced.out_info
    except Exception:  # Whatever a class raises that cannot be built of shapes.
        return list(names.key_paths_in(out_tree))
    return names.key_paths(result, out_tree)


def _origin(since: str | None, traced: jax.stages.Traced, mapping: Mapping) -> str | None:
    """Describes where a value starts to vary, an argument by its name and path."""
    number = (since or "").removeprefix("argument ")
    if not number.isdecimal():
        return since
    # Constants may come before the arguments.
    leaf = int(number) - (len(traced.jaxpr.jaxpr.invars) - len(mapping.leaves))
    return mapping.names[leaf] if leaf >= 0 else since


def unused_donations(
    traced: jax.stages.Traced, program: Program, donated: Sequence[bool]
) -> Iterator[errors.PmapxWarning]:
    """Yields a warning for each donated argument that no output can reuse."""
    if not any(donated):
        return
    mapping = program.mapping
    outputs = traced.jaxpr.out_avals
    all_out_axes = _out_axes(mapping.levels, fastpath.out_tree(traced), outputs)
    free: Counter[tuple[Any, ...]] = Counter()
    for output, out_axes in zip(outputs, all_out_axes, strict=True):
        free[output.shape, output.dtype, axes.out_spec(mapping.levels, out_axes)] += 1
    taken = program.in_shapes()
    for index, (leaf, spec) in enumerate(zip(taken, mapping.in_specs(), strict=True)):
        if not donated[index]:
            continue
        if free[leaf.shape, leaf.dtype, spec] > 0:
            free[leaf.shape, leaf.dtype, spec] -= 1
        else:
            axis, shape = mapping.outermost.in_axes[index], str(mapping.leaves[index])
            argument = mapping.names[index]
            yield errors.DonationUnused(mapping.names.function, argument, shape, axis)


def _out_axes(
    levels: Sequence[MappedAxis], out_tree: jax.tree_util.PyTreeDef, leaves: Sequence[Any]
) -> list[tuple[Axis, ...]]:
    """Returns the mapped axes of each leaf of a result, counted from the front."""
    resolved: list[list[Axis]] = [[] for _ in leaves]
    ranks = [len(leaf.shape) for leaf in leaves]
    for level in levels:
        for index, axis in enumerate(level.out_axes_by_leaf(out_tree)):
            counted = None if axis is None else axes.from_the_front(axis, ranks[index])
            ranks[index] -= axis is not None
            resolved[index].append(counted)
    return [tuple(out_axes) for out_axes in resolved]
