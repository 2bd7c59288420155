"""The mapped function as it runs for one element of the axis, and the two ways to map it.

``over_devices`` runs each element on a device of its own with ``jax.shard_map``; ``vectorized``
runs all of them as one batch with ``jax.vmap``. Both take and give the user's arrays whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh

from pmapx import axes, describe, errors
from pmapx.axes import Axis

# The highest rank of an output with a negative out_axes; NumPy's own limit.
_MAX_RANK = 64


@dataclasses.dataclass(frozen=True)
class Element:
    """The user's function over flat leaves, its result's axes checked and counted.

    Attributes:
      call: takes the dynamic arguments.
      function: its name, for errors and profiles.
      tree: the structure of ``(args, kwargs)``.
      out_axes: as the user gave them.
      on_trace: told each time that the function is traced.
      scope: entered around each trace.
    """

    call: Callable[..., Any]
    function: str
    tree: jax.tree_util.PyTreeDef
    out_axes: Any
    on_trace: Callable[[], None]
    scope: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def __call__(
        self, leaves: Sequence[Any]
    ) -> tuple[list[Any], list[Axis], jax.tree_util.PyTreeDef]:
        """Runs the function; returns its leaves, their axes (from the front), and their tree."""
        self.on_trace()
        args, kwargs = jax.tree.unflatten(self.tree, leaves)
        with self.scope():
            result = self.call(*args, **kwargs)
        out_axes = axes.resolve_out_axes(self.function, self.out_axes, result)
        out_leaves, out_tree = jax.tree.flatten(result)
        counted: list[Axis] = []
        for index, (leaf, axis) in enumerate(zip(out_leaves, out_axes, strict=True)):
            try:
                aval = jax.typeof(leaf)
            except TypeError:
                output = describe.output(index, result)
                raise errors.OutputNotAnArray(self.function, output, leaf) from None
            if axis is None:
                counted.append(None)
                continue
            front = axes.from_the_front(axis, len(aval.shape) + 1)
            if front is None:
                output = describe.output(index, result)
                abstract = describe.Abstract(aval.shape, aval.dtype, False)
                raise errors.OutAxisOutOfRange(
                    self.function, output, str(abstract), len(aval.shape), axis
                )
            counted.append(front)
        return out_leaves, counted, out_tree

    def possible_out_axes(self) -> list[Axis]:
        """Returns every axis that an output can have; a negative one stands for all ranks."""
        stated = set(jax.tree.leaves(self.out_axes, is_leaf=lambda x: x is None))
        if any(axis is not None and axis < 0 for axis in stated):
            stated = {axis for axis in stated if axis is None or axis >= 0} | set(range(_MAX_RANK))
        return sorted(stated, key=lambda axis: -1 if axis is None else axis)


def over_devices(
    element: Element,
    in_axes: Sequence[Axis],
    axis: str,
    mesh: Mesh | AbstractMesh | None,
    *,
    adapt: Callable[..., Callable[..., Any]] | None = None,
) -> Callable[..., Any]:
    """Maps ``element`` over mesh axis ``axis``, one element a device; ``mesh=None``: the context's.

    The specs of the outputs are needed before their number and ranks are known, so the leaves
    come out in groups, one for each possible axis, and are put back in order outside. ``adapt``
    wraps the mapped function given the groups' specs.
    """
    group_axes = element.possible_out_axes()
    out_specs = [axes.spec(out_axis, axis) for out_axis in group_axes]
    in_specs = tuple(axes.spec(in_axis, axis) for in_axis in in_axes)

    def mapped(*leaves: Any) -> Any:
        traced: list[tuple[list[Axis], jax.tree_util.PyTreeDef]] = []

        def on_one_device(*shards: Any) -> list[list[Any]]:
            slices = [
                shard if in_axis is None else lax.squeeze(shard, [in_axis])
                for shard, in_axis in zip(shards, in_axes, strict=True)
            ]
            out_leaves, out_axes, out_tree = element(slices)
            traced.append((out_axes, out_tree))
            groups: list[list[Any]] = [[] for _ in group_axes]
            for leaf, out_axis in zip(out_leaves, out_axes, strict=True):
                leaf = leaf if out_axis is None else lax.expand_dims(leaf, [out_axis])
                groups[group_axes.index(out_axis)].append(leaf)
            return groups

        on_one_device.__name__ = element.function
        program = jax.shard_map(
            on_one_device,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names={axis},
            # The gradients of pmap: with check_vma on, those of replicated inputs come summed.
            check_vma=False,
        )
        if adapt is not None:
            program = adapt(program, group_axes)
        groups = [iter(group) for group in program(*leaves)]
        out_axes, out_tree = traced[-1]
        return jax.tree.unflatten(
            out_tree, [next(groups[group_axes.index(out_axis)]) for out_axis in out_axes]
        )

    return mapped


def vectorized(
    element: Element,
    in_axes: Sequence[Axis],
    axis_name: Hashable | None,
    size: int,
    *,
    spmd_axis: str | None = None,
    constrain: Callable[[Any, Axis], Any] = lambda leaf, out_axis: leaf,
) -> Callable[..., Any]:
    """Maps ``element`` as one batch; ``spmd_axis`` is the mesh axis that the batch lies on.

    ``constrain`` is given each output with its axis and says where it lies.
    """

    def mapped(*leaves: Any) -> Any:
        traced: list[tuple[list[Axis], jax.tree_util.PyTreeDef]] = []

        def on_one_row(*rows: Any) -> list[Any]:
            out_leaves, out_axes, out_tree = element(rows)
            traced.append((out_axes, out_tree))
            return out_leaves

        batched = jax.vmap(
            on_one_row,
            in_axes=tuple(in_axes),
            axis_name=axis_name,
            axis_size=size,
            spmd_axis_name=spmd_axis,
        )(*leaves)
        out_axes, out_tree = traced[-1]
        return jax.tree.unflatten(
            out_tree,
            [
                constrain(
                    leaf[0] if out_axis is None else jnp.moveaxis(leaf, 0, out_axis), out_axis
                )
                for leaf, out_axis in zip(batched, out_axes, strict=True)
            ],
        )

    return mapped
