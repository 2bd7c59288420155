"""The mapped body, which runs once per device, and the two ways to map it.

``shard_mapped`` runs it on each device with ``jax.shard_map``; ``vmapped`` runs it as one batch
with ``jax.vmap``. Both take and return arrays with the mapped axis.
"""

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
Adapt = Callable[[Callable[..., Any], OutAxes], Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class MappedBody:
    """The user's per-device function over flat leaves."""

    call: Callable[..., Any]  # Takes the dynamic arguments.
    function: str  # The name, for errors and profiles.
    tree: jax.tree_util.PyTreeDef  # Of ``(args, kwargs)``.
    on_trace: Callable[[], None]
    scope: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    source: Any = None  # The definition of the function, for JAX's messages.

    def __call__(self, leaves: Sequence[Any]) -> Any:
        self.on_trace()
        args, kwargs = jax.tree.unflatten(self.tree, leaves)
        with self.scope():
            return self.call(*args, **kwargs)


def shard_mapped(
    body: MappedBody,
    levels: Sequence[MappedAxis],
    mesh: Mesh | None,
    *,
    adapt: Adapt | None = None,
    as_shards: bool = False,
    replicated_over: Sequence[str] = (),
) -> Callable[..., Any]:
    """Maps ``body`` over mesh axes, one index per device; ``mesh=None``: the context's.

    ``adapt`` wraps the ``shard_map``, given a list that has the axes of its outputs once it has
    been called. ``as_shards`` takes and returns each device's shard as a replicated array. The
    computation is replicated over the mesh axes ``replicated_over``.
    """

    def mapped(*leaves: Any) -> Any:
        out_trees: list[jax.tree_util.PyTreeDef] = []
        out_axes: OutAxes = []
        # JAX reads out_specs after it has traced the body, which fills them: only then are the
        # number and the ranks of the outputs known.
        out_specs: list[PartitionSpec] = []

        def on_one_device(*shards: Any) -> list[Any]:
            per_device = [_squeezed(shard, levels, i) for i, shard in enumerate(shards)]
            result, out_axes[:] = _result_and_axes(body, levels, per_device)
            out_leaves, out_tree = jax.tree.flatten(result)
            out_trees.append(out_tree)
            # One object for each distinct spec: JAX examines each new one.
            specs = {each: axes.out_spec(levels, each) for each in set(out_axes)}
            out_specs[:] = [PartitionSpec() if as_shards else specs[each] for each in out_axes]
            return [
                _as_output(leaf, leaf_axes, levels)
                for leaf, leaf_axes in zip(out_leaves, out_axes, strict=True)
            ]

        on_one_device.__name__ = body.function
        names.name_source(on_one_device, body.source)
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
            program = adapt(program, out_axes)
        results = program(*leaves)
        return jax.tree.unflatten(out_trees[-1], results)

    return mapped


def _result_and_axes(
    body: MappedBody, levels: Sequence[MappedAxis], leaves: Sequence[Any]
) -> tuple[Any, OutAxes]:
    """Runs ``body``, and finds the axis of each level in each leaf of its result."""
    is_replicated = None
    if any(auto_out_axes.is_in(level.out_axes) for level in levels):
        check = functools.partial(axes.output_types, body.function)
        result, is_replicated = auto_out_axes.analyzed(body, check, levels, leaves)
    else:
        result = body(leaves)
    return result, axes.resolve_out_axes(body.function, levels, result, is_replicated)


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
    """Returns ``leaf``, of which the first device's value is read and differentiated.

    ``shard_map`` averages the cotangents of an output with ``P()``; where the value varies after
    all, they belong to the first device alone.
    """
    return leaf


@_first_of.defjvp
def _first_of_jvp(mesh_axis: str, primals: Any, tangents: Any) -> Any:
    (leaf,), (tangent,) = primals, tangents
    is_first = lax.axis_index(mesh_axis) == 0
    first = lax.psum(jnp.where(is_first, tangent, jnp.zeros_like(tangent)), mesh_axis)
    return _first_of(leaf, mesh_axis), first


def _flat(
    body: MappedBody, level: MappedAxis
) -> tuple[Callable[..., list[Any]], list[tuple[OutAxes, jax.tree_util.PyTreeDef]]]:
    """Returns ``body`` as a function of leaves, and the list where it notes its axes and tree."""
    traced: list[tuple[OutAxes, jax.tree_util.PyTreeDef]] = []

    def flat(*leaves: Any) -> list[Any]:
        result, out_axes = _result_and_axes(body, [level], leaves)
        out_leaves, out_tree = jax.tree.flatten(result)
        traced.append((out_axes, out_tree))
        return out_leaves

    return flat, traced


# An array of which only the type is known.
_placeholder = Primitive("pmapx_placeholder")
_placeholder.def_abstract_eval(lambda *, aval: aval)


def abstractly_mapped(body: MappedBody, level: MappedAxis) -> Callable[..., Any]:
    """Maps ``body`` for the types of the results alone, to be traced and never run.

    It is traced once under the name of the axis, so that any collective is allowed.
    """

    def mapped(*leaves: Any) -> Any:
        flat, traced = _flat(body, level)
        per_device = []
        for leaf, axis in zip(map(jax.typeof, leaves), level.in_axes, strict=True):
            shape = leaf.shape if axis is None else leaf.shape[:axis] + leaf.shape[axis + 1 :]
            per_device.append(jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=leaf.weak_type))
        axis_env = None if level.name is None else [(level.name, level.size)]
        types = jax.make_jaxpr(flat, axis_env=axis_env)(*per_device).out_avals
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


def vmapped(
    body: MappedBody,
    level: MappedAxis,
    *,
    spmd_axis: str | None = None,
    constrain: Callable[[Any, Axis], Any] = lambda leaf, out_axis: leaf,
) -> Callable[..., Any]:
    """Maps ``body`` as one batch; ``spmd_axis`` is the mesh axis that the batch is sharded over.

    ``constrain`` is given each output with its axis and constrains its sharding.
    """

    def mapped(*leaves: Any) -> Any:
        flat, traced = _flat(body, level)
        names.name_source(flat, body.source)
        if level.name is not None:
            flat = vmap_collectives.supported(flat, level.name, level.size)
        batched = jax.vmap(
            flat,
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
