import ast
from collections.abc import Iterator

from pmapx._src.analysis.facts import Reference
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding, Fix, Release
from pmapx._src.lint.references import uses_of
from pmapx._src.lint.renames import renamed
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.removed.host_names import RENAMED as HOSTS
from pmapx._src.source.rewriting import call_edits

_TREE_FUNCTIONS = (
    "map", "leaves", "flatten", "unflatten", "structure", "transpose", "all", "reduce",
)  # fmt: skip
_TREES = {f"jax.tree_{name}": f"jax.tree.{name}" for name in _TREE_FUNCTIONS}
# ``from jax import tree_map`` keeps its name if it comes from here.
_IMPORTED_TREES = {f"jax.tree_{name}": f"jax.tree_util.tree_{name}" for name in _TREE_FUNCTIONS}
_IN_CORE = ("ClosedJaxpr", "Jaxpr", "JaxprEqn", "Literal", "Primitive", "Token", "Var")

# The same thing by another name: safe to rename.
_RENAMED = {
    **_TREES,
    **{f"jax.core.{name}": f"jax.extend.core.{name}" for name in _IN_CORE},
    "jax.tree_multimap": "jax.tree.map",
    "jax.tree_util.tree_multimap": "jax.tree_util.tree_map",
    "jax.config.config": "jax.config",
    "jax.clear_backends": "jax.extend.backend.clear_backends",
    "jax.experimental.enable_x64": "jax.enable_x64",
    "jax.experimental.optimizers": "jax.example_libraries.optimizers",
    "jax.experimental.stax": "jax.example_libraries.stax",
    "jax.linear_util": "jax.extend.linear_util",
    "jax.experimental.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.experimental.pjit.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.experimental.pjit.with_sharding_constraint": "jax.lax.with_sharding_constraint",
    "jax.experimental.sharding": "jax.sharding",
    "jax.interpreters.pxla.Mesh": "jax.sharding.Mesh",
    "jax.interpreters.pxla.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.sharding.use_mesh": "jax.set_mesh",
}
# Something more general, or with other arguments: worth a look.
_SUCCEEDED = {
    "jax.api": "jax",
    "jax.experimental.gda_serialization": "jax.experimental.array_serialization",
    "jax.interpreters.pxla.ShardedDeviceArray": "jax.Array",
    "jax.interpreters.xla.DeviceArray": "jax.Array",
    "jax.numpy.DeviceArray": "jax.Array",
    "jax.random.KeyArray": "jax.Array",
    "jax.random.PRNGKeyArray": "jax.Array",
    "jax.sharding.XLACompatibleSharding": "jax.sharding.Sharding",
}
# Of these an annotation means the same, ``isinstance`` may not.
_TYPES = {old: new for old, new in _SUCCEEDED.items() if new in ("jax.Array",)}
REPLACEMENTS = {
    **_RENAMED,
    **_SUCCEEDED,
    "jax.util": "functions of your own",
    "jax.ops.index": "x.at[...]",
    "jax.ops.index_update": "x.at[...].set",
    "jax.ops.index_add": "x.at[...].add",
    "jax.ops.index_mul": "x.at[...].multiply",
    "jax.ops.index_min": "x.at[...].min",
    "jax.ops.index_max": "x.at[...].max",
    "jax.experimental.disable_x64": "jax.enable_x64(False)",
    "jax.soft_pmap": "pmapx.pmap(..., oversubscribe=True)",
    "jax.abstract_arrays": "jax.core.ShapedArray",
    "jax.experimental.global_device_array": "jax.Array",
    "jax.experimental.array": "jax.Array",
    "jax.experimental.host_callback": "jax.debug.callback and jax.pure_callback",
    "jax.interpreters.pxla.ShardingSpec": "jax.sharding.NamedSharding",
    "jax.interpreters.pxla.parallel_callable": "jax.jit(jax.shard_map(...))",
    "jax.interpreters.pxla.shard_args": "jax.device_put with a NamedSharding",
    "jax.interpreters.pxla.xla_pmap_p": "jax.shard_map, which pmap is made of",
    "jax.interpreters.sharded_jit": "jax.jit with in_shardings",
    "jax.core.axis_frame": "jax.lax.axis_size",
    "jax.lib.xla_bridge": "jax.devices, jax.process_index or jax.extend.backend",
    "jax.lax.pdot": "jnp.einsum, then jax.lax.psum",
    "jax.lax.xeinsum": "jnp.einsum, then jax.lax.psum",
    "jax.lax.pvary": "jax.lax.pcast(..., to='varying')",
    "jax.sharding.PositionalSharding": "jax.sharding.NamedSharding",
    "jax.sharding.OpShardingSharding": "jax.sharding.NamedSharding",
    "jax.sharding.MeshPspecSharding": "jax.sharding.NamedSharding",
}
# The others were removed before JAX 0.8.
SINCE: dict[str, Release] = {
    "jax.experimental.enable_x64": (0, 9),
    "jax.experimental.disable_x64": (0, 9),
    "jax.lib.xla_bridge": (0, 9),
    "jax.interpreters.pxla.ShardingSpec": (0, 10),
    "jax.interpreters.pxla.parallel_callable": (0, 10),
    "jax.interpreters.pxla.shard_args": (0, 10),
    "jax.interpreters.pxla.xla_pmap_p": (0, 10),
    "jax.lax.pvary": (0, 10),
}


class RemovedNames(Rule):
    """A name that pmap code uses was removed from JAX.

    **What.** Names around pmap that no longer exist: ``jax.tree_map`` and related functions,
    ``jax.soft_pmap``, ``ShardedDeviceArray`` and others of ``jax.interpreters.pxla``,
    ``PartitionSpec`` of ``jax.experimental.pjit``, global device arrays, and more. The message
    has the replacement.

    **Why.** The import or the use raises on today's JAX. ``pmapx.install()`` and ``pmapx run``
    restore those that can have the same meaning.

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

    **Safety.** The fix is safe where the replacement is the same thing by another name, as for
    the tree functions, for types in annotations and for ``use_mesh`` in a ``with`` statement. It
    is unsafe where the replacement is more general, as ``jax.Array`` is for ``DeviceArray`` in
    ``isinstance``. The others have no fix.

    **Guide.** "How can I fix my code for the new ``jax.pmap``?"
    """

    code = "PMX519"
    names = REPLACEMENTS

    def check(self, module: Module) -> Iterator[Finding]:
        for reference, entry in uses_of(module, REPLACEMENTS):
            if reference.name not in HOSTS:
                since = SINCE.get(entry)
                removed = f"removed in JAX 0.{since[1]}" if since else "removed from JAX"
                yield self.finding(
                    module.place(reference.node),
                    f"{entry} was {removed}",
                    hint=REPLACEMENTS[entry],
                    fix=_fix(module, reference),
                    since=since,
                )


def _fix(module: Module, reference: Reference) -> Fix | None:
    if reference.name == "jax.lax.pvary":
        return _cast(module, reference)
    if reference.name == "jax.sharding.use_mesh":
        return renamed(module, reference, _RENAMED, is_safe=_is_entered(module, reference))
    fix = renamed(module, reference, _RENAMED, _IMPORTED_TREES)
    if fix is None:
        is_safe = reference.name in _TYPES and _is_annotation(module, reference.node)
        fix = renamed(module, reference, _SUCCEEDED, is_safe=is_safe)
    return fix


def _cast(module: Module, reference: Reference) -> Fix | None:
    """Writes ``pvary(x, axes)`` as ``pcast(x, axes, to="varying")``."""
    call = module.parent(reference.node)
    if not isinstance(call, ast.Call) or call.func is not reference.node:
        return None
    fix = renamed(module, reference, {"jax.lax.pvary": "jax.lax.pcast"})
    added = call_edits.with_keyword(module.source, call, 'to="varying"')
    return Fix((*fix.edits, *added)) if fix is not None and added else None


def _is_entered(module: Module, reference: Reference) -> bool:
    """Returns whether a mesh is only used as a context: ``set_mesh`` alone sets it for good."""
    node = reference.node
    bound = node.asname or node.name if isinstance(node, ast.alias) else None
    calls = [
        module.parent(part)
        for part in module.nodes
        if part is node or (isinstance(part, ast.Name) and part.id == bound)
    ]
    return all(
        isinstance(call, ast.Call) and isinstance(module.parent(call), ast.withitem)
        for call in calls
        if not isinstance(call, ast.Import | ast.ImportFrom)
    )


def _is_annotation(module: Module, node: ast.AST) -> bool:
    """Returns whether a name is in an annotation of a variable, a parameter or a result."""
    parent = module.parent(node)
    while isinstance(parent, ast.expr) and not isinstance(parent, ast.Call):
        node, parent = parent, module.parent(parent)
    if isinstance(parent, (ast.arg, ast.AnnAssign)):
        return parent.annotation is node
    return isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and parent.returns is node
