"""The mapped function as it runs for one element, and the two ways to map it.

``over_devices`` runs each element on a device of its own with ``jax.shard_map``; ``vectorized``
runs all of them as one batch with ``jax.vmap``. Both take and give the user's arrays whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.sharding import Mesh, PartitionSpec

from pmapx._src.spmd import auto_out_axes, axes, vmap_collectives
from pmapx._src.spmd.axes import Axis, MappedAxis
from pmapx._src.trees import names

OutAxes = list[tuple[Axis, ...]]


@dataclasses.dataclass(frozen=True)
class Element:
    """The user's function over flat leaves.

    Attributes:
      call: takes the dynamic arguments.
      function: its name, for errors and profiles.
      tree: the structure of ``(args, kwargs)``.
      on_trace: told each time that the function is traced.
      scope: entered around each trace.
      source: where the function is defined, for JAX's messages.
    """

    call: Callable[..., Any]
    function: str
    tree: jax.tree_util.PyTreeDef
    on_trace: Callable[[], None]
    scope: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    source: Any = None

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Runs the function for one element."""
        self.on_trace()
        args, kwargs = jax.tree.unflatten(self.tree, leaves)
        with self.scope():
            return self.call(*args, **kwargs)


def over_devices(
    element: Element,
    levels: Sequence[MappedAxis],
    mesh: Mesh | None,
    *,
    adapt: Callable[..., Callable[..., Any]] | None = None,
    as_shards: bool = False,
    replicated_over: Sequence[str] = (),
) -> Callable[..., Any]:
    """Maps ``element`` over mesh axes, one element a device; ``mesh=None``: the context's.

    The specs of the outputs are needed before their number and ranks are known, so the leaves
    come out in groups, one for each possible combination of axes, and are put back in order
    outside. ``adapt`` wraps the mapped function, given the groups' axes. ``as_shards`` maps what
    each device holds, in and out, as if it were the whole array. Along the mesh axes
    ``replicated_over``, all devices do the same.
    """
    group_axes = axes.possible_out_axes(levels)
    out_specs = [
        PartitionSpec() if as_shards else axes.out_spec(levels, out_axes) for out_axes in group_axes
    ]

    def mapped(*leaves: Any) -> Any:
        traced: list[tuple[OutAxes, jax.tree_util.PyTreeDef]] = []

        def on_one_device(*shards: Any) -> list[list[Any]]:
            rows = [_squeezed(shard, levels, i) for i, shard in enumerate(shards)]
            result, out_axes = _result_and_axes(element, levels, rows)
            out_leaves, out_tree = jax.tree.flatten(result)
            traced.append((out_axes, out_tree))
            groups: list[list[Any]] = [[] for _ in group_axes]
            for leaf, leaf_axes in zip(out_leaves, out_axes, strict=True):
                leaf = _as_output(leaf, leaf_axes, levels)
                groups[group_axes.index(leaf_axes)].append(leaf)
            return groups

        on_one_device.__name__ = element.function
        names.name_source(on_one_device, element.source)
        in_specs = axes.in_specs(levels, map(jnp.ndim, leaves))
        program = jax.shard_map(
            on_one_device,
            mesh=mesh,
            in_specs=(PartitionSpec(),) * len(leaves) if as_shards else in_specs,
            out_specs=out_specs,
            axis_names={*(level.mesh_axis for level in levels), *replicated_over},
            # The gradients of pmap: with check_vma on, those of replicated inputs come summed.
            check_vma=False,
        )
        if adapt is not None:
            program = adapt(program, group_axes)
        groups = [iter(group) for group in program(*leaves)]
        out_axes, out_tree = traced[-1]
        return jax.tree.unflatten(
            out_tree, [next(groups[group_axes.index(leaf_axes)]) for leaf_axes in out_axes]
        )

    return mapped


def _result_and_axes(
    element: Element, levels: Sequence[MappedAxis], rows: Sequence[Any]
) -> tuple[Any, OutAxes]:
    """Runs ``element``, and finds where each level's axis goes in each leaf of its result."""
    check = functools.partial(axes.output_types, element.function)
    result, is_replicated = auto_out_axes.traced_once(element, check, levels, rows)
    return result, axes.resolve_out_axes(element.function, levels, result, is_replicated)


def _squeezed(shard: Any, levels: Sequence[MappedAxis], index: int) -> Any:
    for level in levels:
        axis = level.in_axes[index]
        shard = shard if axis is None else lax.squeeze(shard, [axis])
    return shard


def _as_output(leaf: Any, out_axes: Sequence[Axis], levels: Sequence[MappedAxis]) -> Any:
    for axis, level in zip(reversed(out_axes), reversed(levels), strict=True):
        if axis is not None:
            leaf = lax.expand_dims(leaf, [axis])
        elif jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            leaf = _first_of(leaf, level.mesh_axis)
    return leaf


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _first_of(leaf: jax.Array, mesh_axis: str) -> jax.Array:
    """Returns ``leaf``, of which the first device's value will be read, and differentiated.

    shard_map takes what it is told to be replicated for that, and averages its cotangents; where
    the value varies after all, those belong to the first device alone.
    """
    return leaf


@_first_of.defjvp
def _first_of_jvp(mesh_axis: str, primals: Any, tangents: Any) -> Any:
    (leaf,), (tangent,) = primals, tangents
    is_first = lax.axis_index(mesh_axis) == 0
    first = lax.psum(jnp.where(is_first, tangent, jnp.zeros_like(tangent)), mesh_axis)
    return _first_of(leaf, mesh_axis), first


def _for_one_row(
    element: Element, level: MappedAxis
) -> tuple[Callable[..., list[Any]], list[tuple[OutAxes, jax.tree_util.PyTreeDef]]]:
    """Returns ``element`` as a function of leaves, and where it notes the axes and the tree."""
    traced: list[tuple[OutAxes, jax.tree_util.PyTreeDef]] = []

    def on_one_row(*rows: Any) -> list[Any]:
        result, out_axes = _result_and_axes(element, [level], rows)
        out_leaves, out_tree = jax.tree.flatten(result)
        traced.append((out_axes, out_tree))
        return out_leaves

    return on_one_row, traced


# An array of which only the type is known.
_placeholder = Primitive("pmapx_placeholder")
_placeholder.def_abstract_eval(lambda *, aval: aval)


def abstractly(element: Element, level: MappedAxis) -> Callable[..., Any]:
    """Maps ``element`` for the types of the results alone, to be traced and never run.

    It is traced for one element under the name of the axis, so that any collective is allowed.
    """

    def mapped(*leaves: Any) -> Any:
        on_one_row, traced = _for_one_row(element, level)
        rows = []
        for leaf, axis in zip(map(jax.typeof, leaves), level.in_axes, strict=True):
            shape = leaf.shape if axis is None else leaf.shape[:axis] + leaf.shape[axis + 1 :]
            rows.append(jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=leaf.weak_type))
        axis_env = None if level.name is None else [(level.name, level.size)]
        types = jax.make_jaxpr(on_one_row, axis_env=axis_env)(*rows).out_avals
        out_axes, out_tree = traced[-1]
        results = []
        for aval, (axis,) in zip(types, out_axes, strict=True):
            shape = aval.shape
            if axis is not None:
                shape = (*shape[:axis], level.size, *shape[axis:])
            weak_type = getattr(aval, "weak_type", False)
            results.append(
                _placeholder.bind(aval=jax.core.ShapedArray(shape, aval.dtype, weak_type=weak_type))
            )
        return jax.tree.unflatten(out_tree, results)

    return mapped


def vectorized(
    element: Element,
    level: MappedAxis,
    *,
    spmd_axis: str | None = None,
    constrain: Callable[[Any, Axis], Any] = lambda leaf, out_axis: leaf,
) -> Callable[..., Any]:
    """Maps ``element`` as one batch; ``spmd_axis`` is the mesh axis that the batch lies on.

    ``constrain`` is given each output with its axis and says where it lies.
    """

    def mapped(*leaves: Any) -> Any:
        on_one_row, traced = _for_one_row(element, level)
        names.name_source(on_one_row, element.source)
        body: Callable[..., list[Any]] = on_one_row
        if level.name is not None:
            body = vmap_collectives.supported(on_one_row, level.name, level.size)
        batched = jax.vmap(
            body,
            in_axes=level.in_axes,
            axis_name=level.name,
            axis_size=level.size,
            spmd_axis_name=spmd_axis,
        )(*leaves)
        out_axes, out_tree = traced[-1]
        return jax.tree.unflatten(
            out_tree,
            [
                constrain(leaf[0] if axis is None else jnp.moveaxis(leaf, 0, axis), axis)
                for leaf, (axis,) in zip(batched, out_axes, strict=True)
            ],
        )

    return mapped
