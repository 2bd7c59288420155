"""PMX516: shard_map in its old place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.removed._removed import uses_of


class ExperimentalShardMap(Rule):
    """``jax.experimental.shard_map`` is the old place of ``jax.shard_map``.

    **What.** An import or a use of ``jax.experimental.shard_map``.

    **Why.** It is deprecated in favour of ``jax.shard_map``, and its ``auto=`` is gone since JAX
    0.8. The new one takes keywords only, names ``check_rep`` ``check_vma``, and says which axes
    are manual (``axis_names``) where the old one said which are not.

    **Before**

    ```python
    from jax.experimental.shard_map import shard_map

    f = shard_map(g, mesh, in_specs=P("i"), out_specs=P("i"), check_rep=False)
    ```

    **After**

    ```python
    import jax

    f = jax.shard_map(g, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    ```

    **Safety.** The same values with ``check_vma=False`` for ``check_rep=False``. With the check
    on, see PMX551.

    **Guide.** "Migrating to ``jax.shard_map``".
    """

    code: ClassVar[str] = "PMX516"

    def check(self, module: Module) -> Iterator[Finding]:
        """Gives each import, or each use through ``jax.experimental``."""
        for reference, _ in uses_of(module, {"jax.experimental.shard_map": ""}):
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
            )


_RENAMED = (("check_rep", "check_vma"), ("auto", "axis_names, the other axes"))
