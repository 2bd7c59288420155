"""PMX533: replicate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule


class ReplicateCall(Rule):
    """``replicate`` stacks copies.

    **What.** ``flax.jax_utils.replicate`` and the functions of Acme, Jaxline and KFAC-JAX that
    do the same.

    **Why.** It stacks one copy a device along a new axis and cuts along that axis. JAX does not
    know the copies to be equal, so that every later ``x[0]`` gathers them (PMX521). It is also
    made of ``jax.device_put_replicated``, which JAX 0.10 removed: with a Flax of before then it
    raises.

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
    ``P()``. ``pmapx.replicate`` keeps the axis and puts each copy straight to its device.

    **Guide.** "Option 1: Prevent unintended sharding (recommended)".
    """

    code: ClassVar[str] = "PMX533"
    names = known_names.REPLICATE

    def check(self, module: Module) -> Iterator[Finding]:
        """Gives each call."""
        for node, call in module.facts.calls.items():
            for name in call.names & known_names.REPLICATE:
                yield self.finding(
                    module.place(node),
                    f"{name.rpartition('.')[2]} stacks one copy a device, which JAX does not "
                    "know to be equal",
                    hint="jax.device_put(tree, NamedSharding(mesh, P())) and in_axes=None, "
                    "or pmapx.replicate, which keeps the axis",
                )
