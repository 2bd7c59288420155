from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.shards._origin import HINT, origin


class UnreplicateCall(Rule):
    """``unreplicate`` reads the first shard of every leaf.

    **What.** ``flax.jax_utils.unreplicate``, ``common_utils.get_metrics`` and the functions of
    Acme, Jaxline and KFAC-JAX that do the same. ``jnp.take`` and ``next(iter(x))`` of a stacked
    value count too.

    **Why.** As PMX522: it is ``tree_map(lambda x: x[0], tree)``.

    **Before**

    ```python
    import jax
    from flax import jax_utils

    metrics = jax_utils.unreplicate(metrics)
    ```

    **After**

    ```python
    import pmapx

    metrics = pmapx.unreplicate(metrics)
    ```

    **Safety.** The same values.

    **Guide.** "The ``unreplicate`` Anti-pattern".
    """

    code = "PMX523"
    names = known_names.UNREPLICATE

    def check(self, module: Module) -> Iterator[Finding]:
        for node, indexing in module.facts.indexings.items():
            if indexing.how == "call":
                known = f" of {origin(indexing.stacked, module)}"
                yield self.finding(
                    module.place(node),
                    "reads the first shard"
                    + (known if indexing.stacked.from_map else " of each leaf")
                    + ": a collective over all devices",
                    confidence=indexing.stacked.confidence,
                    hint=HINT,
                    because=indexing.stacked.place,
                )
