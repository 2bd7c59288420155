"""``in_axes`` and ``out_axes``, the size of the mapped axis, and the partition specs."""

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pmapx._src import errors
from pmapx._src.spmd import auto_out_axes, axis_names
from pmapx._src.spmd.auto_out_axes import AUTO
from pmapx._src.trees import names as describe
from pmapx._src.trees.names import Abstract

Axis = int | None


@dataclasses.dataclass(frozen=True)
class MappedAxis:
    """One axis that a function is mapped over."""

    name: Hashable | None  # The user's.
    mesh_axis: str
    size: int
    in_axes: tuple[Axis, ...]  # By leaf of the arguments, counted from the front.
    out_axes: Any  # As the user wrote them.
    # The ``out_axes`` by leaf of the result, with ``AUTO`` resolved; filled by the trace.
    chosen: list[Axis] = dataclasses.field(default_factory=list, compare=False)

    def out_axes_by_leaf(self, out_tree: jax.tree_util.PyTreeDef) -> list[Axis]:
        """Returns its position in each leaf of a traced result, as the user wrote it."""
        if auto_out_axes.is_in(self.out_axes):
            return self.chosen
        return broadcast(self.out_axes, out_tree)


def in_specs(levels: Sequence[MappedAxis], ranks: Iterable[int]) -> tuple[PartitionSpec, ...]:
    """Returns the spec of each leaf that is mapped over ``levels``, outermost first.

    Leaves that are mapped alike share one object: JAX examines each new spec.
    """

    @functools.cache
    def spec(rank: int, *mapped: Axis) -> PartitionSpec:
        # An inner level counts the dimensions that the outer ones have left.
        dimensions = list(range(rank))
        names: list[str | None] = [None] * rank
        for level, axis in zip(levels, mapped, strict=True):
            if axis is not None:
                names[dimensions.pop(axis)] = axis_names.in_spec(level.mesh_axis)
        return _trimmed(names)

    by_leaf = zip(ranks, *(level.in_axes for level in levels), strict=True)
    return tuple(itertools.starmap(spec, by_leaf))


def out_spec(levels: Sequence[MappedAxis], out_axes: Sequence[Axis]) -> PartitionSpec:
    """Returns the spec of an output whose axis of each level, outermost first, is given."""
    names: list[str | None] = []
    for level, axis in zip(reversed(levels), reversed(out_axes), strict=True):
        if axis is not None:
            names += [None] * (axis - len(names))
            names.insert(axis, axis_names.in_spec(level.mesh_axis))
    return _trimmed(names)


def _trimmed(names: list[str | None]) -> PartitionSpec:
    while names and names[-1] is None:
        names.pop()
    return PartitionSpec(*names)


@dataclasses.dataclass(frozen=True)
class LeafNames:
    """Names leaves on demand, so that a call without errors does not pay for it."""

    function: str
    paths: Sequence[describe.KeyPath]  # Of each leaf of the dynamic ``(args, kwargs)``.
    positions: tuple[int, ...]  # Of each dynamic positional argument in the call.
    parameters: tuple[str, ...]

    def __getitem__(self, index: int) -> str:
        return describe.leaf(self.paths[index], self.positions, self.parameters)


def check_axes(which: str, axes: Any) -> Any:
    """Returns ``axes``, a list of in_axes as a tuple; refuses leaves that are not axes."""
    for axis_leaf in jax.tree.leaves(axes):
        if type(axis_leaf) is not int and not (which == "out_axes" and axis_leaf is AUTO):
            raise errors.AxesNotIntegers(which, axes, axis_leaf)
    # The arguments are a tuple; a result may be a list.
    return tuple(axes) if which == "in_axes" and isinstance(axes, list) else axes


def broadcast(prefix: Any, full: jax.tree_util.PyTreeDef) -> list[Axis]:
    """Returns one axis for each leaf of a structure; ValueError if it is not a prefix.

    Only the structure is used: no object of a user's class is created.
    """
    leaves, tree = jax.tree.flatten(prefix, is_leaf=lambda x: x is None)
    counts = _leaf_counts(tree, full)
    return [axis for axis, count in zip(leaves, counts, strict=True) for _ in range(count)]


def _leaf_counts(prefix: jax.tree_util.PyTreeDef, full: jax.tree_util.PyTreeDef) -> Iterator[int]:
    node, found = prefix.node_data(), full.node_data()
    if node is None:
        yield full.num_leaves
        return
    if found is None or node[0] is not found[0] or node[1] != found[1]:
        raise ValueError(f"{prefix} is not a prefix of {full}")
    for child, full_child in zip(prefix.children(), full.children(), strict=True):
        yield from _leaf_counts(child, full_child)


def resolve_in_axes(in_axes: Any, tree: jax.tree_util.PyTreeDef, names: LeafNames) -> list[Axis]:
    """Returns the axis of each leaf of ``(args, kwargs)``; keywords are mapped along axis 0."""
    if type(in_axes) is int and in_axes == 0:
        return [0] * tree.num_leaves
    args, kwargs = tree.children()
    try:
        positional = broadcast(in_axes, args)
    except ValueError:
        # The root is the pair (in_axes, 0), the 0 being that of the keyword arguments.
        difference = describe.prefix_difference(in_axes, args, "pmap in_axes[0]")
        argument = _first_misfit(in_axes, args.children(), names)
        has_keywords = bool(kwargs.children())
        raise errors.InAxesNotPrefix(names.function, argument, difference, has_keywords) from None
    return positional + [0] * kwargs.num_leaves


def _first_misfit(in_axes: Any, args: Sequence[jax.tree_util.PyTreeDef], names: LeafNames) -> str:
    if not isinstance(in_axes, tuple) or len(in_axes) != len(args):
        count = len(args)
        return f"the {count} argument{'' if count == 1 else 's'} that were passed by position"
    for position, axis, arg in zip(names.positions, in_axes, args, strict=True):
        try:
            broadcast(axis, arg)
        except ValueError:
            return describe.argument(position, names.parameters)
    return "the arguments"


def from_the_front(axis: int, rank: int) -> int | None:
    """Returns ``axis`` counted from the front, or None if a rank so low has no such axis."""
    counted = axis + rank if axis < 0 else axis
    return counted if 0 <= counted < rank else None


@dataclasses.dataclass(frozen=True)
class Mapping:
    """What one call maps, resolved: the same for all calls of a signature."""

    leaves: tuple[Abstract, ...]
    levels: tuple[MappedAxis, ...]  # Outermost first; more than one for a pmap of a pmap.
    sized_by: int | None  # The index of a leaf that has the size of the outermost axis.
    names: LeafNames

    @property
    def outermost(self) -> MappedAxis:
        return self.levels[0]

    def describe_size(self) -> tuple[str, str, int]:
        """Returns the argument that has the outermost size, its shape and its axis."""
        if self.sized_by is None:
            return "axis_size", f"[{self.outermost.size}]", 0
        axis = self.outermost.in_axes[self.sized_by]
        return self.names[self.sized_by], str(self.leaves[self.sized_by]), axis or 0

    def varying_axes(self) -> list[list[str]]:
        """Returns the mesh axes that each leaf is mapped over."""
        return [
            [level.mesh_axis for level in self.levels if level.in_axes[index] is not None]
            for index in range(len(self.leaves))
        ]

    def in_specs(self) -> tuple[PartitionSpec, ...]:
        return in_specs(self.levels, (len(leaf.shape) for leaf in self.leaves))


def normalize_in_axes(
    in_axes: Sequence[Axis], leaves: Sequence[Abstract], names: LeafNames
) -> tuple[Axis, ...]:
    """Counts every axis from the front, and checks that its leaf has it."""
    normalized: list[Axis] = []
    for index, (axis, leaf) in enumerate(zip(in_axes, leaves, strict=True)):
        rank = len(leaf.shape)
        counted = None if axis is None else from_the_front(axis, rank)
        if axis is not None and counted is None:
            described = (names.function, names[index], str(leaf))
            if rank == 0:
                is_keyword = names.paths[index][0].idx == 1
                raise errors.ScalarMapped(*described, axis, is_keyword)
            raise errors.RankTooLow(*described, rank, axis)
        normalized.append(counted)
    return tuple(normalized)


def mapped_axis_size(
    in_axes: Sequence[Axis],
    leaves: Sequence[Abstract],
    names: LeafNames,
    axis_size: int | None,
) -> tuple[int, int | None]:
    """Returns the size of the mapped axis, and the index of a leaf that has it."""
    sizes = [
        (index, axis, leaves[index].shape[axis])
        for index, axis in enumerate(in_axes)
        if axis is not None
    ]
    if not sizes:
        if axis_size is None:
            raise errors.NothingMapped(names.function)
        return axis_size, None
    first, first_axis, size = sizes[0]

    def described(index: int, axis: int) -> tuple[str, str, int]:
        return names[index], str(leaves[index]), axis

    if axis_size is not None and size != axis_size:
        found = described(first, first_axis)
        raise errors.AxisSizeOptionMismatch(names.function, axis_size, *found, size)
    if size == 0:
        raise errors.EmptyAxis(names.function, *described(first, first_axis))
    for index, axis, other in sizes[1:]:
        if other != size:
            both = (*described(first, first_axis), size), (*described(index, axis), other)
            raise errors.AxisSizeMismatch(names.function, *both)
    return size, first


def output_types(function: str, result: Any) -> list[Any]:
    """Returns the type of each leaf of what a function returned; refuses what is not an array."""
    types = []
    for index, leaf in enumerate(jax.tree.leaves(result)):
        try:
            types.append(jax.typeof(leaf))
        except TypeError:
            output = _output(index, result)
            raise errors.OutputNotAnArray(function, output, leaf) from None
    return types


def _output(index: int, result: Any) -> str:
    return describe.output(describe.key_paths(result, jax.tree.structure(result))[index])


def resolve_out_axes(
    function: str,
    levels: Sequence[MappedAxis],
    result: Any,
    is_replicated: Sequence[Sequence[bool]] | None = None,
) -> list[tuple[Axis, ...]]:
    """Returns the axis of each level, outermost first, for each leaf of ``result``.

    ``result`` is per-device, so the innermost level's axis is counted first, and the outer ones see
    a rank that has grown by it. ``is_replicated`` decides for ``AUTO``, by leaf and level.
    """
    avals = output_types(function, result)
    out_tree = jax.tree.structure(result)
    ranks = [len(aval.shape) for aval in avals]
    resolved: list[list[Axis]] = [[] for _ in avals]
    for depth, level in reversed(list(enumerate(levels))):
        try:
            stated: list[Any] = broadcast(level.out_axes, out_tree)
        except ValueError:
            difference = describe.prefix_difference(level.out_axes, out_tree, "pmap out_axes")
            raise errors.OutAxesNotPrefix(function, difference) from None
        if is_replicated is not None:
            for index, axis in enumerate(stated):
                if axis is AUTO:
                    stated[index] = None if is_replicated[index][depth] else 0
            level.chosen[:] = stated
        for index, axis in enumerate(stated):
            counted = None if axis is None else from_the_front(axis, ranks[index] + 1)
            if counted is None and axis is not None:
                output = _output(index, result)
                shape = Abstract(avals[index].shape, avals[index].dtype, False)
                raise errors.OutAxisOutOfRange(function, output, str(shape), ranks[index], axis)
            ranks[index] += counted is not None
            resolved[index].insert(0, counted)
    return [tuple(out_axes) for out_axes in resolved]
