from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Confidence
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.shards._origin import HINT, origin


class FirstOfTree(Rule):
    """The first shard of every leaf of a result of a pmapped function is read.

    **What.** ``jax.tree.map(lambda x: x[0], tree)`` in all its spellings: the older names of
    ``tree_map``, ``operator.itemgetter(0)``, a named function that does it. Confidence is low
    where nothing is known about the tree.

    **Why.** As PMX521, once for each leaf: a train state of 1,000 leaves costs 1,000 collectives.

    **Before**

    ```python
    import jax

    state = jax.pmap(lambda s: {"w": s + 1})(state)
    host_state = jax.tree.map(lambda x: x[0], state)
    ```

    **After**

    ```python
    import jax
    import pmapx

    state = jax.pmap(lambda s: {"w": s + 1})(state)
    host_state = pmapx.unreplicate(state)
    ```

    **Safety.** The same values.

    **Guide.** "The ``unreplicate`` Anti-pattern".
    """

    code = "PMX522"
    names = known_names.PMAP | known_names.REPLICATE | known_names.PREFETCH

    def check(self, module: Module) -> Iterator[Finding]:
        for node, indexing in module.facts.indexings.items():
            if indexing.how != "tree":
                continue
            what = (
                "every leaf"
                if indexing.stacked.confidence == Confidence.LOW
                else f"every leaf of {origin(indexing.stacked, module)}"
            )
            yield self.finding(
                module.place(node),
                f"reads one shard of {what}, each with a collective over all devices",
                confidence=indexing.stacked.confidence,
                hint=HINT,
                because=indexing.stacked.place,
            )
