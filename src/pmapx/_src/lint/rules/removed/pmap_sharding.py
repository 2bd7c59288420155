"""PMX513: jax.sharding.PmapSharding."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.removed._removed import uses_of

_NAMES = {"jax.sharding.PmapSharding": "", "jax.experimental.sharding.PmapSharding": ""}


class PmapSharding(Rule):
    """``PmapSharding`` was removed.

    **What.** A use of ``jax.sharding.PmapSharding``, be it to make one or to ask for one.

    **Why.** JAX 0.10 removed it. What pmap returns has a ``NamedSharding`` since JAX 0.8, so
    ``isinstance(x.sharding, PmapSharding)`` is never true there even where the name exists.

    **Before**

    ```python
    import jax

    sharding = jax.sharding.PmapSharding.default((8, 128))
    ```

    **After**

    ```python
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    mesh = Mesh(np.array(jax.local_devices()), ("i",))
    sharding = NamedSharding(mesh, P("i"))
    ```

    **Safety.** The same layout: one row a device.

    **Guide.** "Shardings".
    """

    code: ClassVar[str] = "PMX513"

    def check(self, module: Module) -> Iterator[Finding]:
        """Gives each use, the one in isinstance in words of its own."""
        for reference, _ in uses_of(module, _NAMES):
            parent = module.parent(reference.node)
            asks = (
                isinstance(parent, ast.Call)
                and isinstance(parent.func, ast.Name)
                and parent.func.id == "isinstance"
            )
            yield self.finding(
                module.place(reference.node),
                "PmapSharding was removed in JAX 0.10"
                + (": nothing has it since 0.8, so this is never true" if asks else ""),
                hint="NamedSharding(mesh, P(axis))",
            )
