"""The program of one signature: traced and compiled once, whatever its inputs' placement."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from pmapx import axes, describe, errors, placement
from pmapx.audit import replication
from pmapx.axes import Axis, MappedAxis, Mapping
from pmapx.layout import Layout


class Program:
    """A layout as a jitted function of the user's arguments, and what was compiled of it.

    Attributes:
      layout: where it runs.
      mapping: what it maps.
      jitted: the ``jax.jit`` of it.
      tree: the structure of its dynamic arguments.
      compiled_tree: the structure of the arguments that it takes once compiled.
      compiled_jit: the ``jax.jit`` over that structure.
    """

    def __init__(
        self,
        layout: Layout,
        mapping: Mapping,
        tree: jax.tree_util.PyTreeDef,
        jitted: Callable[..., Any],
        jit_of_leaves: Callable[[], Callable[..., Any]],
    ) -> None:
        """Wraps ``jitted``, which runs ``layout`` on arguments of structure ``tree``."""
        self.layout = layout
        self.mapping = mapping
        self.jitted: Any = jitted
        self.tree = tree
        # The trees that compiled programs take are those that they were traced with.
        self.compiled_tree = tree if _is_kept(tree) else _leaves_alone(tree)
        self.compiled_jit: Any = jitted if self.compiled_tree is tree else jit_of_leaves()

    def trace(self) -> jax.stages.Traced:
        """Traces it for inputs in their places, whatever mesh surrounds the call."""
        args, kwargs = jax.tree.unflatten(self.compiled_tree, self.in_shapes())
        with placement.context_of(self.layout.mesh):
            traced: jax.stages.Traced = self.compiled_jit.trace(*args, **kwargs)
        return traced

    def in_shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Returns the shapes and places of the leaves as the program takes them."""
        shapes = []
        for leaf, sharding in zip(self.mapping.leaves, self.layout.in_shardings, strict=True):
            shape = leaf.shape
            if self.layout.as_shards and sharding is not None:
                shape = sharding.shard_shape(shape)
                sharding = NamedSharding(sharding.mesh, PartitionSpec())
            shapes.append(
                jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=leaf.weak_type, sharding=sharding)
            )
        return shapes

    def out_shardings(self, out_info: Any) -> list[NamedSharding]:
        """Returns where each leaf of the result lies, given the result or its shapes."""
        levels, mesh = self.mapping.levels, self.layout.mesh
        return [
            NamedSharding(mesh, axes.out_spec(levels, out_axes))
            for out_axes in _out_axes(levels, out_info)
        ]

    def lower(self, traced: jax.stages.Traced, **options: Any) -> jax.stages.Lowered:
        """Lowers what ``trace`` returned."""
        with placement.context_of(self.layout.mesh):
            return traced.lower(**options)


class Executable:
    """A compiled program, where it wants its inputs, and what to tell those who call it."""

    def __init__(
        self,
        compiled: jax.stages.Compiled,
        program: Program,
        warnings: Sequence[errors.PmapxWarning],
    ) -> None:
        """Reads the places off the layout, or off XLA's choice where that was left open."""
        self.compiled = compiled
        self.warnings = warnings
        self.program = program
        self.mesh = program.layout.mesh
        self.in_shardings: Sequence[Any] = program.layout.in_shardings
        if any(sharding is None for sharding in self.in_shardings):
            self.in_shardings = jax.tree.leaves(
                compiled.input_shardings, is_leaf=lambda x: x is None
            )
        self._local: Any = None

    def run(self, leaves: Sequence[Any]) -> Any:
        """Runs it on the leaves of its arguments, which are in their places."""
        args, kwargs = jax.tree.unflatten(self.program.compiled_tree, leaves)
        try:
            return self.compiled(*args, **kwargs)
        except ValueError as error:
            if "input layouts that disagree" not in str(error):
                raise
            # JAX 0.10 mistakes the layout of committed 4-bit arrays; a jit does not compare it.
            placed = [jax.device_put(x, s) for x, s in zip(leaves, self.in_shardings, strict=True)]
            args, kwargs = jax.tree.unflatten(self.program.compiled_tree, placed)
            with placement.context_of(self.mesh):
                return self.program.compiled_jit(*args, **kwargs)

    def on_local_devices(self, make: Callable[[Executable], Any]) -> Any:
        """Returns the program as this process runs it, made the first time."""
        if self._local is None:
            self._local = make(self)
        return self._local


def _is_kept(tree: jax.tree_util.PyTreeDef) -> bool:
    """Says whether what is built from a tree has that tree again.

    It has not where a class makes its metadata anew and compares it by identity.
    """
    try:
        built = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct((), bool)] * tree.num_leaves)
        return bool(jax.tree.structure(built) == tree)
    except Exception:  # Whatever the class raises when it is built of these, or compared.
        return False


def _leaves_alone(tree: jax.tree_util.PyTreeDef) -> jax.tree_util.PyTreeDef:
    return jax.tree.structure(((0,) * tree.num_leaves, {}))


def jit_of(
    fun: Callable[..., Any],
    function: str,
    mapped: Callable[..., Any],
    static_argnums: Sequence[int],
    donate_argnums: Sequence[int],
    compiler_options: dict[str, Any] | None,
) -> Callable[..., Any]:
    """Returns the jit of ``mapped`` over the user's dynamic arguments, under ``fun``'s name."""

    def program(*args: Any, **kwargs: Any) -> Any:
        return mapped(*jax.tree.leaves((args, kwargs)))

    program.__name__ = program.__qualname__ = function
    program.__doc__ = getattr(fun, "__doc__", None)
    try:
        signature = inspect.signature(fun)
        parameters = [
            parameter
            for index, parameter in enumerate(signature.parameters.values())
            if index not in static_argnums
        ]
        program.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        pass  # Without a signature JAX falls back on numbers in place of names.
    return jax.jit(program, donate_argnums=tuple(donate_argnums), compiler_options=compiler_options)


def may_lose_values(mapping: Mapping) -> bool:
    """Says whether any output has ``out_axes=None``, as the user wrote it."""
    stated = [level.out_axes for level in mapping.levels]
    return None in jax.tree.leaves(stated, is_leaf=lambda x: x is None)


def varying_outputs(
    traced: jax.stages.Traced, mapping: Mapping, function: str, *, as_shards: bool = False
) -> Iterator[errors.PmapxWarning]:
    """Yields a warning for each output with ``out_axes=None`` that may differ between devices.

    The specs of a program over shards do not tell which arguments do; ``mapping`` does.
    """
    if not may_lose_values(mapping):
        return
    levels = mapping.levels
    groups = axes.possible_out_axes(levels)
    varying = [
        [level.mesh_axis for level in levels if level.in_axes[index] is not None]
        for index in range(len(mapping.leaves))
    ]
    variations = replication.shard_map_outputs(traced.jaxpr, varying if as_shards else None)
    if variations is None:
        return
    result = traced.out_info
    out_axes = _out_axes(levels, result)
    # The outputs of the mapped body come group by group.
    body_order = sorted(range(len(out_axes)), key=lambda index: groups.index(out_axes[index]))
    for index, variation in zip(body_order, variations, strict=True):
        for level, axis in zip(levels, out_axes[index], strict=True):
            if axis is None and level.mesh_axis in variation.axes:
                output = describe.output(index, result)
                since = _in_words(variation.since, traced, mapping)
                yield errors.VaryingOutput(function, output, level.name, since)


def _in_words(since: str | None, traced: jax.stages.Traced, mapping: Mapping) -> str | None:
    """Returns where a value starts to vary, an argument by its name and path."""
    number = (since or "").removeprefix("argument ")
    if not number.isdecimal():
        return since
    # Constants may come before the arguments.
    leaf = int(number) - (len(traced.jaxpr.jaxpr.invars) - len(mapping.leaves))
    return mapping.names[leaf] if leaf >= 0 else since


def unused_donations(
    traced: jax.stages.Traced, program: Program, function: str, donated: Sequence[bool]
) -> Iterator[errors.PmapxWarning]:
    """Yields a warning for each donated argument that no output can reuse."""
    if not any(donated):
        return
    mapping = program.mapping
    outputs = jax.tree.leaves(traced.out_info)
    free: Counter[tuple[Any, ...]] = Counter()
    for output, out_axes in zip(outputs, _out_axes(mapping.levels, traced.out_info), strict=True):
        free[output.shape, output.dtype, axes.out_spec(mapping.levels, out_axes)] += 1
    taken = program.in_shapes()
    for index, (leaf, spec) in enumerate(zip(taken, mapping.in_specs(), strict=True)):
        if not donated[index]:
            continue
        if free[leaf.shape, leaf.dtype, spec] > 0:
            free[leaf.shape, leaf.dtype, spec] -= 1
        else:
            axis = mapping.outermost.in_axes[index]
            shape = str(mapping.leaves[index])
            yield errors.DonationUnused(function, mapping.names[index], shape, axis)


def _out_axes(levels: Sequence[MappedAxis], result: Any) -> list[tuple[Axis, ...]]:
    """Returns the axes of each leaf of a whole result, counted from the front."""
    resolved: list[list[Axis]] = [[] for _ in jax.tree.leaves(result)]
    ranks = [len(leaf.shape) for leaf in jax.tree.leaves(result)]
    for level in levels:
        for index, axis in enumerate(level.whole_out_axes(result)):
            counted = None if axis is None else axes.from_the_front(axis, ranks[index])
            ranks[index] -= axis is not None
            resolved[index].append(counted)
    return [tuple(out_axes) for out_axes in resolved]
