"""Results under a mesh that the user set.

Under ``jax.set_mesh``, operations of JAX take arrays that are typed with that mesh: of explicit
axes no others at all, of automatic ones not all others. Programs have meshes of their own, so
their results are typed with the user's: the same shards on the same devices, under the names of
that mesh.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._src.mesh import placement


def on_context_mesh(result: Any) -> tuple[Any, bool]:
    """Returns a result typed with the mesh that is set around the call, if there is one.

    Also says whether its shards are those of the program, so that nothing was copied. Results on
    other devices than those of the mesh stay as they are.
    """
    mesh = placement.context_mesh()
    if mesh is None:
        return result, True
    leaves, tree = jax.tree.flatten(result)
    typed, is_same = [], True
    with jax.transfer_guard("allow"):  # Of the names of axes only, but for what they cannot say.
        for leaf in leaves:
            wanted = _wanted(leaf, mesh)
            if wanted is not None:
                is_same = is_same and wanted.is_equivalent_to(leaf.sharding, leaf.ndim)
                leaf = jax.device_put(leaf, wanted)
            typed.append(leaf)
    return jax.tree.unflatten(tree, typed), is_same


def _wanted(leaf: Any, mesh: Mesh) -> NamedSharding | None:
    """Returns the sharding over ``mesh`` for a leaf of a result; None if it stays as it is."""
    found = getattr(leaf, "sharding", None)
    if not isinstance(found, NamedSharding) or found.mesh == mesh:
        return None
    if found.device_set != set(mesh.devices.flat):
        return None
    # Where no spec says the same, the shards are transferred: in another order, or replicated.
    return NamedSharding(mesh, _spec(found, mesh))


def _spec(found: NamedSharding, mesh: Mesh) -> PartitionSpec:
    """Returns the spec over ``mesh`` that splits each dimension as ``found`` does, if it can."""
    free = [(name, size) for name, size in mesh.shape.items() if size > 1]
    entries: list[Any] = []
    for split in found.spec:
        count, names = _shard_count(found, split), []
        while count > 1 and free and count % free[0][1] == 0:
            count //= free[0][1]
            names.append(free.pop(0)[0])
        entries.append(tuple(names) or None)
    return PartitionSpec(*entries)


def _shard_count(sharding: NamedSharding, names: Any) -> int:
    """Returns into how many shards a dimension is split."""
    size = 1
    for name in names if type(names) is tuple else (names,):
        size *= 1 if name is None else sharding.mesh.shape[name]
    return size
