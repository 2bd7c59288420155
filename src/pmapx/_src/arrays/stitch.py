"""``stitch`` and ``unstitch``: what each process holds, as global arrays, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._src import errors
from pmapx._src.multihost import agreement, host_local


def stitch(
    local_tree: Any,
    mesh_or_devices: Mesh | Sequence[jax.Device],
    spec: Any = None,
    *,
    check: bool = True,
) -> Any:
    """Makes global arrays of what each process holds: a batch of all processes, for example.

    Every process passes its own part of each array. Nothing is sent between processes but, unless
    ``check=False``, the shapes, so that a process that differs is named.

    Example:
      >>> import jax, numpy as np, pmapx
      >>> batch = {"image": np.zeros((jax.local_device_count(), 28, 28))}
      >>> whole = pmapx.stitch(batch, jax.devices())
      >>> whole["image"].shape == (jax.device_count(), 28, 28)
      True

    Args:
      local_tree: a tree of arrays, this process's part of each.
      mesh_or_devices: the mesh that the arrays lie on, or devices, which make a mesh of one axis.
      spec: a partition spec, or a tree prefix of those; by default the first dimension is split
        over the first axis of the mesh.
      check: whether to compare shapes and types between the processes first.

    Returns:
      The same tree of global arrays.
    """
    mesh = mesh_or_devices
    if not isinstance(mesh, Mesh):
        mesh = Mesh(np.array(list(mesh)), (_axis_of(spec),))
    if spec is None:
        spec = PartitionSpec(mesh.axis_names[0])
    leaves, tree = jax.tree.flatten(local_tree)
    specs: list[PartitionSpec] = []
    jax.tree.map(
        lambda s, subtree: specs.extend([s] * len(jax.tree.leaves(subtree))),
        spec,
        local_tree,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    if check:
        _check_shapes(local_tree)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(local_tree)]
    stitched = [
        _stitched(path or "the array", leaf, NamedSharding(mesh, leaf_spec))
        for path, leaf, leaf_spec in zip(paths, leaves, specs, strict=True)
    ]
    return jax.tree.unflatten(tree, stitched)


def unstitch(global_tree: Any) -> Any:
    """Returns what this process holds of global arrays, as arrays of its own, without a copy.

    Example:
      >>> import jax, numpy as np, pmapx
      >>> whole = pmapx.stitch(np.zeros((jax.local_device_count(), 3)), jax.devices())
      >>> pmapx.unstitch(whole).shape == (jax.local_device_count(), 3)
      True

    Args:
      global_tree: a tree of arrays; those that lie in this process alone are left as they are.

    Returns:
      The same tree of host-local arrays.
    """

    def unstitched(x: Any) -> Any:
        if not host_local.is_global(x):
            return x
        if not isinstance(x.sharding, NamedSharding):
            raise errors.CannotUnstitch(str(x.shape), type(x.sharding).__name__)
        return host_local.to_local(x, x.sharding)

    return jax.tree.map(unstitched, global_tree)


def _axis_of(spec: Any) -> str:
    """Returns the one axis that specs name, for a mesh of devices; any name when they name none."""
    names = {
        name
        for leaf in jax.tree.leaves(spec, is_leaf=lambda x: isinstance(x, PartitionSpec))
        for entry in leaf
        for name in (entry if isinstance(entry, tuple) else (entry,))
        if name is not None
    }
    if len(names) > 1:
        raise errors.UnknownOption("mesh_or_devices", "devices", f"a mesh with axes {names}")
    return next(iter(names), "i")


def _stitched(path: str, x: Any, sharding: NamedSharding) -> jax.Array:
    local = host_local.local_sharding(sharding)
    try:
        local.shard_shape(np.shape(x))
    except ValueError:
        raise errors.CannotStitch(
            path, np.shape(x), str(sharding.spec), dict(local.mesh.shape)
        ) from None
    return host_local.to_global(x, sharding)


def _check_shapes(local_tree: Any) -> None:
    """Refuses trees that differ between processes in structure, shapes or types."""
    described = [
        f"{jax.tree_util.keystr(path) or 'the array'}: {x.dtype}{list(x.shape)}"
        for path, leaf in jax.tree.leaves_with_path(local_tree)
        for x in [jax.typeof(leaf)]
    ]
    difference = agreement.first_difference(described)
    if difference is not None:
        raise errors.StitchShapesDiffer(difference)
