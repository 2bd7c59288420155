"""PMX514: the switch back to the old pmap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.removed._removed import mentions

_FLAG = "jax_pmap_shmap_merge"


class PmapShmapMerge(Rule):
    """The switch ``jax_pmap_shmap_merge`` was removed.

    **What.** ``jax.config.update("jax_pmap_shmap_merge", ...)``, the environment variable
    ``JAX_PMAP_SHMAP_MERGE``, and the flag on a command line, in any string of the code.

    **Why.** It gave the old pmap back in JAX 0.8 and 0.9. JAX 0.10 removed it: the update
    raises, and the environment variable is ignored without a word, so the program runs on the
    new pmap.

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

    **Safety.** ``pmapx.pmap`` has the original's behaviour on today's JAX; deleting the line
    alone leaves you with the new pmap's.

    **Guide.** "Help! Fix me now!", which still advises the switch.
    """

    code: ClassVar[str] = "PMX514"

    def check(self, module: Module) -> Iterator[Finding]:
        """Gives each string that names the switch, and each attribute of the config."""
        for node in mentions(module, _FLAG):
            yield self.finding(
                module.place(node),
                "the switch back to the old pmap was removed in JAX 0.10",
                hint="delete it; pmapx.pmap has the old behaviour",
            )
