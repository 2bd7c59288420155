from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Place
from pmapx._src.lint.finding import Finding, Fix
from pmapx._src.lint.rules import Rule
from pmapx._src.source.rewriting import call_edits


class GradientReducedTwice(Rule):
    """A gradient in a ``shard_map`` is reduced over the axis a second time.

    **What.** The body of a ``shard_map`` takes a gradient with respect to an argument with the
    spec ``P()`` and reduces it with ``pmean`` or ``psum``, while ``check_vma`` is on, which is
    the default.

    **Why.** With the check on, JAX knows that the parameters are replicated, and the gradient with
    respect to them is already summed over the axis. A ``pmean`` then changes nothing and leaves
    the sum: gradients N times too large on N devices, with no error. Code that was migrated from
    pmap by following JAX's guide does exactly this.

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

    **Safety.** The fix is unsafe, since it changes the result: gradients become N times smaller,
    which is correct. The alternative is to keep the check and take the mean inside the loss.

    **Guide.** It differs: "Rewriting ``pmap`` to ``jit(shard_map)``" leaves the check on.
    """

    code = "PMX551"
    names = known_names.SHARD_MAP

    def check(self, module: Module) -> Iterator[Finding]:
        for node, gradient in module.facts.reductions.items():
            yield self.finding(
                module.place(node),
                "this gradient is already summed over the axis, since the shard_map on line "
                f"{gradient.shard_map.line} checks replication: N times too large on N devices",
                hint="check_vma=False on the shard_map, or reduce the loss and not the gradient",
                fix=_fix(module, gradient.shard_map),
            )


def _fix(module: Module, shard_map: Place) -> Fix | None:
    call = module.call_at(shard_map)
    if call is None or {"check_vma", "check_rep", None} & {each.arg for each in call.keywords}:
        return None
    edits = call_edits.with_keyword(module.source, call, "check_vma=False")
    return Fix(tuple(edits), is_safe=False) if edits else None
