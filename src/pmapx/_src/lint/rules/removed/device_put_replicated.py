from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.references import uses_of
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.removed.device_put_sharded import placed


class DevicePutReplicated(Rule):
    """``jax.device_put_replicated`` was removed.

    **What.** A use of ``jax.device_put_replicated``.

    **Why.** JAX 0.10 removed it: the use raises AttributeError. Its name promised replication,
    but it returned copies stacked along a leading device axis, which JAX does not know to be
    equal.

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

    **Safety.** *After* is true replication, without the leading device axis: the pmapped function
    then takes the argument with ``P()`` (``in_axes=None``). To keep the leading axis, use
    ``pmapx.device_put_replicated``, which places each copy directly on its device. The unsafe fix
    keeps the axis too, in plain JAX: it stacks all copies on one device first.

    **Guide.** "Drop-in replacements for ``device_put_sharded`` and ``device_put_replicated``".
    """

    code = "PMX511"
    names = ("jax.device_put_replicated",)

    def check(self, module: Module) -> Iterator[Finding]:
        for reference, _ in uses_of(module, self.names):
            yield self.finding(
                module.place(reference.node),
                "jax.device_put_replicated was removed in JAX 0.10",
                hint="jax.device_put with NamedSharding(mesh, P()) replicates; "
                "pmapx.device_put_replicated keeps the leading device axis",
                fix=placed(
                    module,
                    reference,
                    "jax.tree.map(lambda x: jax.numpy.stack([x] * len({devices})), {value})",
                ),
                since=(0, 10),
            )
