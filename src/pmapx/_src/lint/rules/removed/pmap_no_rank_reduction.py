"""PMX515: the switch for pmap's ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.removed._removed import mentions

_FLAG = "jax_pmap_no_rank_reduction"


class PmapNoRankReduction(Rule):
    """The switch ``jax_pmap_no_rank_reduction`` was removed.

    **What.** ``jax.config.update("jax_pmap_no_rank_reduction", ...)`` and the environment
    variable of that name.

    **Why.** JAX 0.9 removed it, so the update raises. It said how pmap cuts its arguments
    inside the runtime; the mapped function sees one element, without the mapped axis, in every
    release.

    **Before**

    ```python
    import jax

    jax.config.update("jax_pmap_no_rank_reduction", False)
    step = jax.pmap(train_step)
    ```

    **After**

    ```python
    import jax

    step = jax.pmap(train_step)
    ```

    **Safety.** Deleting the line changes no values.

    **Guide.** "The pmapped function itself (Rank-preserving vs. Rank-reducing)".
    """

    code: ClassVar[str] = "PMX515"

    def check(self, module: Module) -> Iterator[Finding]:
        """Gives each string or attribute that names the switch."""
        for node in mentions(module, _FLAG):
            yield self.finding(
                module.place(node),
                "jax_pmap_no_rank_reduction was removed in JAX 0.9",
                hint="delete it: the mapped function sees one element all the same",
            )
