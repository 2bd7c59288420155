"""PMX551: a gradient that is summed twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule


class GradientReducedTwice(Rule):
    """A gradient in a ``shard_map`` is reduced over the axis a second time.

    **What.** The body of a ``shard_map`` takes a gradient with respect to an argument with the
    spec ``P()`` and reduces it with ``pmean`` or ``psum``, while ``check_vma`` is on, which is
    the default.

    **Why.** With the check on, JAX knows that the parameters are the same on all devices, and
    the gradient with respect to them comes out already summed over the axis. A ``pmean`` then
    changes nothing and leaves the sum: gradients N times too large on N devices, with no error.
    Code that was rewritten from pmap by JAX's guide does exactly this.

    **Before**

    ```python
    import jax
    from jax.sharding import PartitionSpec as P

    def step(params, batch):
        grads = jax.grad(loss)(params, batch)
        grads = jax.lax.pmean(grads, "i")
        return grads

    f = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
    ```

    **After**

    ```python
    import jax
    from jax.sharding import PartitionSpec as P

    def step(params, batch):
        grads = jax.grad(loss)(params, batch)
        grads = jax.lax.pmean(grads, "i")
        return grads

    f = jax.shard_map(
        step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P(), check_vma=False
    )
    ```

    **Safety.** It changes the result: by the number of devices, to the right one. The other way
    is to keep the check and take the mean inside the loss.

    **Guide.** It says otherwise: "Rewriting ``pmap`` to ``jit(shard_map)``" leaves the check on.
    """

    code: ClassVar[str] = "PMX551"

    def check(self, module: Module) -> Iterator[Finding]:
        """Gives each second reduction."""
        for node, gradient in module.facts.reductions.items():
            yield self.finding(
                module.place(node),
                "this gradient is already summed over the axis, since the shard_map on line "
                f"{gradient.shard_map.line} checks replication: N times too large on N devices",
                hint="check_vma=False on the shard_map, or reduce the loss and not the gradient",
            )
