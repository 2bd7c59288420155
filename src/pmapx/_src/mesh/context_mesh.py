"""The mesh that the user set around a call, and results under it.

Under ``jax.set_mesh``, JAX's operations take arrays whose types have that mesh: with explicit axes
no others at all, with automatic axes not all others. Programs have their own meshes, so their
results are given shardings over the user's mesh: the same shards on the same devices.
"""

import contextlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from pmapx._src.mesh.partition_specs import entry_axes

# Set around work of our own, to hide a mesh that the user set.
NO_MESH = Mesh(np.empty((), dtype=object), ())


@jax.jit
def _from_nothing() -> jax.Array:
    return jnp.zeros((), bool)


def context_mesh() -> Mesh | None:
    """Returns the mesh that ``jax.set_mesh`` put around the call or the trace, if any."""
    if jax.sharding.get_abstract_mesh().empty:
        return None
    # A result without inputs is placed on the context mesh, also while tracing.
    with jax.ensure_compile_time_eval():
        sharding = _from_nothing().sharding
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return mesh if isinstance(mesh, Mesh) else None


def mesh_in_type(leaf: Any) -> AbstractMesh | None:
    """Returns the mesh that a leaf has in its type, if any."""
    mesh = getattr(getattr(jax.typeof(leaf), "sharding", None), "mesh", None)
    return None if mesh is None or mesh.empty else mesh


def explicit_mesh_in_type(leaf: Any) -> AbstractMesh | None:
    """Returns the mesh that a leaf has in its type if some of its axes are explicit."""
    mesh = mesh_in_type(leaf)
    return None if mesh is None or AxisType.Explicit not in mesh.axis_types else mesh


def context_of(mesh: Mesh) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which ``mesh`` is set, for a trace of our own."""
    try:
        return jax.set_mesh(mesh)
    except ValueError:  # Inside an enclosing trace, only an abstract mesh can be set.
        return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def without_context_mesh() -> contextlib.AbstractContextManager[Any]:
    if jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    return jax.set_mesh(NO_MESH)


def on_context_mesh(result: Any) -> tuple[Any, bool]:
    """Returns a result with shardings over the context mesh, if there is one.

    Also returns whether nothing was copied. Results on other devices than those of the mesh keep
    their shardings.
    """
    mesh = context_mesh()
    if mesh is None:
        return result, True
    leaves, tree = jax.tree.flatten(result)
    typed, is_same = [], True
    with jax.transfer_guard("allow"):  # Most change the axis names only.
        for leaf in leaves:
            wanted = _wanted(leaf, mesh)
            if wanted is not None:
                is_same = is_same and wanted.is_equivalent_to(leaf.sharding, leaf.ndim)
                leaf = jax.device_put(leaf, wanted)
            typed.append(leaf)
    return jax.tree.unflatten(tree, typed), is_same


def _wanted(leaf: Any, mesh: Mesh) -> NamedSharding | None:
    """Returns the sharding over ``mesh`` for a leaf of a result; None to keep its own."""
    found = getattr(leaf, "sharding", None)
    if not isinstance(found, NamedSharding) or found.mesh == mesh:
        return None
    if found.device_set != set(mesh.devices.flat):
        return None
    # Without an equivalent spec the result is resharded: in another order, or replicated.
    return NamedSharding(mesh, _spec(found, mesh))


def _spec(found: NamedSharding, mesh: Mesh) -> PartitionSpec:
    """Returns the spec over ``mesh`` that shards each dimension as ``found`` does, if it can."""
    free = [(name, size) for name, size in mesh.shape.items() if size > 1]
    entries: list[Any] = []
    for entry in found.spec:
        count, names = math.prod(found.mesh.shape[name] for name in entry_axes(entry)), []
        while count > 1 and free and count % free[0][1] == 0:
            count //= free[0][1]
            names.append(free.pop(0)[0])
        entries.append(tuple(names) or None)
    return PartitionSpec(*entries)
