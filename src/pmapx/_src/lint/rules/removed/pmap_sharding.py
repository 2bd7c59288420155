import ast
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.references import uses_of
from pmapx._src.lint.rules import Rule


class PmapSharding(Rule):
    """``PmapSharding`` was removed.

    **What.** A use of ``jax.sharding.PmapSharding``, to make one or to test for one.

    **Why.** JAX 0.10 removed it. Since JAX 0.8, pmap returns arrays with a ``NamedSharding``, so
    ``isinstance(x.sharding, PmapSharding)`` is false even where the name exists.

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

    **Safety.** The same sharding: the leading axis is split over the devices.

    **Guide.** "Shardings".
    """

    code = "PMX513"
    names = ("jax.sharding.PmapSharding", "jax.experimental.sharding.PmapSharding")

    def check(self, module: Module) -> Iterator[Finding]:
        for reference, _ in uses_of(module, self.names):
            parent = module.parent(reference.node)
            asks = (
                isinstance(parent, ast.Call)
                and isinstance(parent.func, ast.Name)
                and parent.func.id == "isinstance"
            )
            yield self.finding(
                module.place(reference.node),
                "PmapSharding was removed in JAX 0.10"
                + (": no array has it since 0.8, so this is always false" if asks else ""),
                hint="NamedSharding(mesh, P(axis))",
                since=(0, 10),
            )
