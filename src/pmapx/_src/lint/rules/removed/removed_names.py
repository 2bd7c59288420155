"""PMX519: other names on the road from pmap that JAX removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.removed._removed import uses_of

REPLACEMENTS = {
    "jax.tree_map": "jax.tree.map",
    "jax.tree_multimap": "jax.tree.map",
    "jax.tree_leaves": "jax.tree.leaves",
    "jax.tree_flatten": "jax.tree.flatten",
    "jax.tree_unflatten": "jax.tree.unflatten",
    "jax.tree_structure": "jax.tree.structure",
    "jax.tree_transpose": "jax.tree.transpose",
    "jax.tree_all": "jax.tree.all",
    "jax.tree_reduce": "jax.tree.reduce",
    "jax.config.config": "jax.config",
    "jax.util": "functions of your own",
    "jax.clear_backends": "jax.extend.backend.clear_backends",
    "jax.ops.index": "x.at[...]",
    "jax.ops.index_update": "x.at[...].set",
    "jax.ops.index_add": "x.at[...].add",
    "jax.ops.index_mul": "x.at[...].multiply",
    "jax.ops.index_min": "x.at[...].min",
    "jax.ops.index_max": "x.at[...].max",
    "jax.experimental.enable_x64": "jax.enable_x64",
    "jax.experimental.disable_x64": "jax.enable_x64(False)",
    "jax.experimental.optimizers": "jax.example_libraries.optimizers",
    "jax.experimental.stax": "jax.example_libraries.stax",
    **{
        f"jax.core.{name}": f"jax.extend.core.{name}"
        for name in ("ClosedJaxpr", "Jaxpr", "JaxprEqn", "Literal", "Primitive", "Token", "Var")
    },
    "jax.tree_util.tree_multimap": "jax.tree.map",
    "jax.soft_pmap": "pmapx.pmap(..., oversubscribe=True)",
    "jax.api": "jax",
    "jax.linear_util": "jax.extend.linear_util",
    "jax.abstract_arrays": "jax.core.ShapedArray",
    "jax.experimental.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.experimental.pjit.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.experimental.pjit.with_sharding_constraint": "jax.lax.with_sharding_constraint",
    "jax.experimental.global_device_array": "jax.Array",
    "jax.experimental.gda_serialization": "jax.experimental.array_serialization",
    "jax.experimental.array": "jax.Array",
    "jax.experimental.sharding": "jax.sharding",
    "jax.experimental.host_callback": "jax.debug.callback and jax.pure_callback",
    "jax.interpreters.pxla.Mesh": "jax.sharding.Mesh",
    "jax.interpreters.pxla.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.interpreters.pxla.ShardedDeviceArray": "jax.Array",
    "jax.interpreters.pxla.ShardingSpec": "jax.sharding.NamedSharding",
    "jax.interpreters.pxla.parallel_callable": "jax.jit(jax.shard_map(...))",
    "jax.interpreters.pxla.shard_args": "jax.device_put with a NamedSharding",
    "jax.interpreters.pxla.xla_pmap_p": "jax.shard_map, which pmap is made of",
    "jax.interpreters.sharded_jit": "jax.jit with in_shardings",
    "jax.interpreters.xla.DeviceArray": "jax.Array",
    "jax.numpy.DeviceArray": "jax.Array",
    "jax.random.KeyArray": "jax.Array",
    "jax.random.PRNGKeyArray": "jax.Array",
    "jax.core.axis_frame": "jax.lax.axis_size",
    "jax.lib.xla_bridge": "jax.devices, jax.process_index or jax.extend.backend",
    "jax.lax.pdot": "jnp.einsum, then jax.lax.psum",
    "jax.lax.xeinsum": "jnp.einsum, then jax.lax.psum",
    "jax.lax.pvary": "jax.lax.pcast(..., to='varying')",
    "jax.sharding.use_mesh": "jax.set_mesh",
    "jax.sharding.PositionalSharding": "jax.sharding.NamedSharding",
    "jax.sharding.OpShardingSharding": "jax.sharding.NamedSharding",
    "jax.sharding.MeshPspecSharding": "jax.sharding.NamedSharding",
    "jax.sharding.XLACompatibleSharding": "jax.sharding.Sharding",
}
_HOSTS = ("host_id", "host_ids", "host_count")


class RemovedNames(Rule):
    """A name that pmap code uses was removed from JAX.

    **What.** Names around pmap that are no longer there: ``jax.tree_map`` and its family,
    ``jax.soft_pmap``, ``ShardedDeviceArray`` and what else ``jax.interpreters.pxla`` had,
    ``jax.experimental.pjit``'s ``PartitionSpec``, global device arrays, and more. The message
    has the replacement.

    **Why.** The import or the use raises on today's JAX. Under ``pmapx.install()`` and
    ``pmapx run`` those are back that can mean the same.

    **Before**

    ```python
    import jax

    doubled = jax.tree_map(lambda x: 2 * x, tree)
    ```

    **After**

    ```python
    import jax

    doubled = jax.tree.map(lambda x: 2 * x, tree)
    ```

    **Safety.** Safe where the replacement is a renaming, as for the tree functions; the others
    need a look.

    **Guide.** "How can I fix my code for the new ``jax.pmap``?"
    """

    code: ClassVar[str] = "PMX519"

    def check(self, module: Module) -> Iterator[Finding]:
        """Gives each use of a name in the table."""
        for reference, entry in uses_of(module, REPLACEMENTS):
            if reference.name.rpartition(".")[2] in _HOSTS:
                continue
            yield self.finding(
                module.place(reference.node),
                f"{entry} is no longer in JAX",
                hint=REPLACEMENTS[entry],
            )
