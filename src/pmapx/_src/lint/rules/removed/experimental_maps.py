from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.references import uses_of
from pmapx._src.lint.renames import renamed
from pmapx._src.lint.rules import Rule

_REPLACEMENTS = {
    "jax.experimental.maps.xmap": "jax.shard_map, or jax.vmap with spmd_axis_name",
    "jax.experimental.maps.Mesh": "jax.sharding.Mesh",
    "jax.experimental.maps.mesh": "jax.sharding.Mesh",
    "jax.experimental.maps.thread_resources": "jax.sharding.get_abstract_mesh()",
    "jax.experimental.maps": "jax.sharding.Mesh and jax.shard_map",
    "jax.experimental.xmap": "jax.shard_map, or jax.vmap with spmd_axis_name",
}
_RENAMED = {"jax.experimental.maps.Mesh": "jax.sharding.Mesh"}


class ExperimentalMaps(Rule):
    """``jax.experimental.maps`` was removed.

    **What.** An import or a use of ``jax.experimental.maps``: ``xmap``, and the ``Mesh`` that
    used to be there.

    **Why.** JAX removed the module in 0.4.31; the import raises.

    **Before**

    ```python
    import jax
    from jax.experimental.maps import Mesh
    ```

    **After**

    ```python
    import jax
    from jax.sharding import Mesh
    ```

    **Safety.** ``Mesh`` is the same class in its new module: the fix is safe. ``xmap`` has no
    drop-in replacement: write the mapped axes as ``in_specs`` of ``jax.shard_map``.

    **Guide.** "Migrating to ``jax.shard_map``".
    """

    code = "PMX517"
    names = _REPLACEMENTS

    def check(self, module: Module) -> Iterator[Finding]:
        for reference, entry in uses_of(module, _REPLACEMENTS):
            yield self.finding(
                module.place(reference.node),
                f"{reference.name} was removed in JAX 0.4.31",
                hint=_REPLACEMENTS[entry],
                fix=renamed(module, reference, _RENAMED),
            )
