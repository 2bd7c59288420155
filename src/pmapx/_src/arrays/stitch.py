"""``stitch`` and ``unstitch``: host-local arrays to global ones, and back."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._src import errors
from pmapx._src.mesh.partition_specs import spec_axes
from pmapx._src.multihost import agreement, host_local


def stitch(
    local_tree: Any,
    mesh_or_devices: Mesh | Sequence[jax.Device],
    spec: Any = None,
    *,
    check: bool = True,
) -> Any:
    """Creates global arrays from the host-local part of each process, for example of a batch.

    No data is sent between processes. Unless ``check=False``, they compare shapes and dtypes, so
    that an error names the process that differs.

    Examples:
      >>> import jax, numpy as np, pmapx
      >>> batch = {"image": np.zeros((jax.local_device_count(), 28, 28))}
      >>> global_batch = pmapx.stitch(batch, jax.devices())
      >>> global_batch["image"].shape == (jax.device_count(), 28, 28)
      True

    Args:
      local_tree: a pytree of this process's part of each array.
      mesh_or_devices: the mesh of the global arrays, or devices, which form a one-axis mesh.
      spec: a partition spec, or a tree prefix of them; by default the first dimension is sharded
        over the first mesh axis.
      check: whether to compare shapes and dtypes between the processes first.

    Returns:
      The tree of global arrays.
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
    """Returns this process's part of global arrays as host-local arrays, without a copy.

    Examples:
      >>> import jax, numpy as np, pmapx
      >>> x = pmapx.stitch(np.zeros((jax.local_device_count(), 3)), jax.devices())
      >>> pmapx.unstitch(x).shape == (jax.local_device_count(), 3)
      True

    Args:
      global_tree: a pytree of arrays; host-local ones are returned unchanged.

    Returns:
      The tree of host-local arrays.
    """

    def unstitched(x: Any) -> Any:
        if not host_local.is_global(x):
            return x
        if not isinstance(x.sharding, NamedSharding):
            raise errors.CannotUnstitch(str(x.shape), type(x.sharding).__name__)
        return host_local.to_local(x, x.sharding)

    return jax.tree.map(unstitched, global_tree)


def _axis_of(spec: Any) -> str:
    """Returns the only mesh axis that the specs name, or any name if they name none."""
    specs = jax.tree.leaves(spec, is_leaf=lambda x: isinstance(x, PartitionSpec))
    names = {name for each in specs for name in spec_axes(each)}
    if len(names) > 1:
        raise errors.UnknownOption(
            "mesh_or_devices", "devices", f"a mesh with axes {sorted(map(str, names))}", "stitch"
        )
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
    """Raises if the trees of the processes differ in structure, shapes or dtypes."""
    described = [
        f"{jax.tree_util.keystr(path) or 'the array'}: {x.dtype}{list(x.shape)}"
        for path, leaf in jax.tree.leaves_with_path(local_tree)
        for x in [jax.typeof(leaf)]
    ]
    difference = agreement.first_difference(described)
    if difference is not None:
        raise errors.StitchShapesDiffer(difference)
