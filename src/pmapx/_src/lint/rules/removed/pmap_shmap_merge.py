from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.references import mentions, without_switch
from pmapx._src.lint.rules import Rule

_FLAG = "jax_pmap_shmap_merge"


class PmapShmapMerge(Rule):
    """The flag ``jax_pmap_shmap_merge`` was removed.

    **What.** ``jax.config.update("jax_pmap_shmap_merge", ...)``, the environment variable
    ``JAX_PMAP_SHMAP_MERGE``, and the flag on a command line, in any string of the code.

    **Why.** It selected the old pmap in JAX 0.8 and 0.9. JAX 0.10 removed it: the update raises,
    and the environment variable is silently ignored, so the program runs on the new pmap.

    **Before**

    ```python
    import jax

    jax.config.update("jax_pmap_shmap_merge", False)
    ```

    **After**

    ```python
    import pmapx

    step = pmapx.pmap(train_step, axis_name="batch")
    ```

    **Safety.** ``pmapx.pmap`` has the original's behavior on today's JAX. The fix only deletes
    the line and is unsafe: it leaves you with the new pmap's behavior.

    **Guide.** "Help! Fix me now!", which still advises the flag.
    """

    code = "PMX514"
    names = (_FLAG,)

    def check(self, module: Module) -> Iterator[Finding]:
        for node in mentions(module, _FLAG):
            yield self.finding(
                module.place(node),
                "the flag that selects the old pmap was removed in JAX 0.10",
                hint="delete it; pmapx.pmap restores the old behavior",
                fix=without_switch(module, node, is_safe=False),
                since=(0, 10),
            )
