"""PMX503: pmap within jit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule


class PmapUnderJit(Rule):
    """A pmapped function is called under ``jax.jit``.

    **What.** ``jax.jit(jax.pmap(f))``, or a pmapped function that a jitted one calls.

    **Why.** ``jax.pmap`` is at its best as the outermost transform. Under ``jit`` its inputs are
    gathered and cut anew inside the program, and in a program of several processes the
    host-local arrays are taken for global ones. ``pmap`` compiles by itself: the ``jit`` around
    it adds nothing.

    **Before**

    ```python
    import jax

    step = jax.jit(jax.pmap(train_step, axis_name="batch"))
    ```

    **After**

    ```python
    import jax

    step = jax.pmap(train_step, axis_name="batch")
    ```

    **Safety.** Taking away a ``jit`` that is directly around the ``pmap`` keeps the values. Where
    the jitted function does more than call the map, move the map out, or use ``jax.shard_map``,
    which is made for use under ``jit``.

    **Guide.** "Transforming ``jax.pmap`` e.g., ``jax.jit``".
    """

    code: ClassVar[str] = "PMX503"

    def check(self, module: Module) -> Iterator[Finding]:
        """Gives jits of maps, and calls of maps inside jitted code."""
        for node, mapped in module.facts.jitted_maps.items():
            yield self.finding(
                module.place(node),
                f"jit of a pmapped function (its pmap is on line {mapped.site.line})",
                hint="drop the jit: pmap compiles by itself",
            )
        for node, call in module.facts.invocations.items():
            if call.is_under_jit and not call.is_under_map:
                yield self.finding(
                    module.place(node),
                    "a pmapped function is called inside a jitted one "
                    f"(its pmap is on line {call.mapped.site.line})",
                    hint="call it outside the jit, or use jax.shard_map, which works under jit",
                )
