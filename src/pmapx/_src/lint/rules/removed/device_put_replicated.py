"""PMX511: jax.device_put_replicated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.removed._removed import uses_of


class DevicePutReplicated(Rule):
    """``jax.device_put_replicated`` was removed.

    **What.** A use of ``jax.device_put_replicated``.

    **Why.** JAX 0.10 removed it: the use raises AttributeError. Its name promised replication,
    while it gave stacked copies, one row a device, that JAX does not know to be equal.

    **Before**

    ```python
    import jax

    params = jax.device_put_replicated(params, jax.local_devices())
    ```

    **After**

    ```python
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    mesh = Mesh(np.array(jax.local_devices()), ("i",))
    params = jax.device_put(params, NamedSharding(mesh, P()))
    ```

    **Safety.** *After* is true replication, without the leading axis: the mapped function then
    takes the argument with ``P()`` (``in_axes=None``). To keep the leading axis, use
    ``pmapx.device_put_replicated``, which puts each device's copy straight to it; the guide's
    drop-in first holds all copies on one device.

    **Guide.** "Drop-in replacements for ``device_put_sharded`` and ``device_put_replicated``".
    """

    code: ClassVar[str] = "PMX511"

    def check(self, module: Module) -> Iterator[Finding]:
        """Gives each use."""
        for reference, _ in uses_of(module, {"jax.device_put_replicated": ""}):
            yield self.finding(
                module.place(reference.node),
                "jax.device_put_replicated was removed in JAX 0.10",
                hint="jax.device_put with NamedSharding(mesh, P()) replicates truly; "
                "pmapx.device_put_replicated keeps the leading axis",
            )
