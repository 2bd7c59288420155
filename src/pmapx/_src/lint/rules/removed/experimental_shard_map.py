import ast
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.references import uses_of
from pmapx._src.lint.renames import MovedFunction
from pmapx._src.lint.rules import Rule

_RENAMED = (("check_rep", "check_vma"), ("auto", "axis_names, the other axes"))
_SHARD_MAP = MovedFunction(
    "jax.experimental.shard_map",
    "shard_map",
    "jax.shard_map",
    # The new function takes all but the first by keyword.
    (None, "mesh", "in_specs", "out_specs", "check_vma"),
    keywords={"check_rep": "check_vma"},
    refused=frozenset({"auto", "f"}),
)


class ExperimentalShardMap(Rule):
    """``jax.experimental.shard_map`` is the old module of ``jax.shard_map``.

    **What.** An import or a use of ``jax.experimental.shard_map``.

    **Why.** It is deprecated in favor of ``jax.shard_map``, and its ``auto=`` was removed in JAX
    0.8. The new function takes keywords only, renames ``check_rep`` to ``check_vma``, and names
    the manual axes (``axis_names``) where the old one named the automatic ones.

    **Before**

    ```python
    from jax.experimental.shard_map import shard_map

    f = shard_map(g, mesh, in_specs=P("i"), out_specs=P("i"), check_rep=False)
    ```

    **After**

    ```python
    from jax import shard_map

    f = shard_map(g, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    ```

    **Safety.** The fix is safe: since JAX 0.8 the old function calls the new one in this way. A
    use with ``auto=`` or ``**options`` is not fixed.

    **Guide.** "Migrating to ``jax.shard_map``".
    """

    code = "PMX516"
    names = (_SHARD_MAP.module,)

    def check(self, module: Module) -> Iterator[Finding]:
        for reference, _ in uses_of(module, self.names):
            call = module.parent(reference.node)
            renamed = []
            if isinstance(call, ast.Call):
                given = {keyword.arg for keyword in call.keywords}
                renamed = [f"{old} is now {new}" for old, new in _RENAMED if old in given]
            yield self.finding(
                module.place(reference.node),
                "jax.experimental.shard_map is deprecated"
                + (f"; {', '.join(renamed)}" if renamed else ""),
                hint="jax.shard_map, with mesh= by keyword",
                fix=_SHARD_MAP.fix(module, reference),
            )
