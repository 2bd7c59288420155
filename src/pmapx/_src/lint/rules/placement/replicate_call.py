from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule


class ReplicateCall(Rule):
    """``replicate`` stacks copies along a leading device axis.

    **What.** ``flax.jax_utils.replicate``, and the equivalents in Acme, Jaxline and KFAC-JAX.

    **Why.** It stacks one copy per device along a new axis and shards that axis. JAX does not know
    that the copies are equal, so every later ``x[0]`` is a collective (PMX521). It also calls
    ``jax.device_put_replicated``, which JAX 0.10 removed: older Flax releases raise.

    **Before**

    ```python
    import jax
    from flax import jax_utils

    state = jax_utils.replicate(state)
    ```

    **After**

    ```python
    import jax
    from jax.sharding import NamedSharding, PartitionSpec as P

    state = jax.device_put(state, NamedSharding(mesh, P()))
    ```

    **Safety.** *After* has no leading axis: the mapped function takes it with ``in_axes=None`` or
    ``P()``. ``pmapx.replicate`` keeps the axis and places each copy directly on its device.

    **Guide.** "Option 1: Prevent unintended sharding (recommended)".
    """

    code = "PMX533"
    names = known_names.REPLICATE

    def check(self, module: Module) -> Iterator[Finding]:
        for node, call in module.facts.calls.items():
            for name in call.names & known_names.REPLICATE:
                yield self.finding(
                    module.place(node),
                    f"{name.rpartition('.')[2]} stacks one copy per device, and JAX does "
                    "not know that they are equal",
                    hint="jax.device_put(tree, NamedSharding(mesh, P())) and in_axes=None, "
                    "or pmapx.replicate, which keeps the axis",
                )
