"""PMX512: jax.device_put_sharded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.removed._removed import uses_of


class DevicePutSharded(Rule):
    """``jax.device_put_sharded`` was removed.

    **What.** A use of ``jax.device_put_sharded``.

    **Why.** JAX 0.10 removed it: the use raises AttributeError.

    **Before**

    ```python
    import jax

    x = jax.device_put_sharded(shards, jax.local_devices())
    ```

    **After**

    ```python
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    mesh = Mesh(np.array(jax.local_devices()), ("i",))
    x = jax.device_put(np.stack(shards), NamedSharding(mesh, P("i")))
    ```

    **Safety.** The same array. ``np.stack`` is right for arrays on the host; for shards that are
    on devices already, ``pmapx.device_put_sharded`` moves none of them twice. For trees, map the
    stack over the leaves.

    **Guide.** "Drop-in replacements for ``device_put_sharded`` and ``device_put_replicated``".
    """

    code: ClassVar[str] = "PMX512"

    def check(self, module: Module) -> Iterator[Finding]:
        """Gives each use."""
        for reference, _ in uses_of(module, {"jax.device_put_sharded": ""}):
            yield self.finding(
                module.place(reference.node),
                "jax.device_put_sharded was removed in JAX 0.10",
                hint="jax.device_put(np.stack(shards), NamedSharding(mesh, P(axis))), "
                "or pmapx.device_put_sharded",
            )
