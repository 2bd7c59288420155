from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.references import mentions, without_switch
from pmapx._src.lint.rules import Rule

_FLAG = "jax_pmap_no_rank_reduction"


class PmapNoRankReduction(Rule):
    """The flag ``jax_pmap_no_rank_reduction`` was removed.

    **What.** ``jax.config.update("jax_pmap_no_rank_reduction", ...)`` and the environment
    variable of that name.

    **Why.** JAX 0.9 removed it, so the update raises. It chose how pmap splits its arguments
    inside the runtime; the pmapped function sees its arguments without the mapped axis in every
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

    **Safety.** The fix is safe: deleting the line changes no values.

    **Guide.** "The pmapped function itself (Rank-preserving vs. Rank-reducing)".
    """

    code = "PMX515"
    names = (_FLAG,)

    def check(self, module: Module) -> Iterator[Finding]:
        for node in mentions(module, _FLAG):
            yield self.finding(
                module.place(node),
                "jax_pmap_no_rank_reduction was removed in JAX 0.9",
                hint="delete it: the pmapped function sees no mapped axis either way",
                fix=without_switch(module, node, is_safe=True),
                since=(0, 9),
            )
