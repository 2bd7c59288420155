from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.shards._origin import HINT, origin


class IndexOfShard(Rule):
    """One shard of a result of a pmapped function is read by an index.

    **What.** ``x[0]``, ``x[0, ...]``, ``jnp.take(x, 0, axis=0)`` and similar, where ``x`` was
    returned by a pmapped function or stacked by ``replicate``. Values are followed through
    assignments, tuples, dicts, attributes and functions of the same package. Confidence is low
    if ``x`` may be a tuple, of which ``[0]`` selects an element.

    **Why.** The shards are on different devices. With the original pmap, ``x[0]`` read the first
    device's shard; today the index is a collective over all devices: 12.8 ms instead of 0.39 ms
    for an array of 8 x 2**20 floats, the process aborts when several threads do it, and with
    several processes it fails with ``CopyArrays only supports destination device list of
    the same size``.

    **Before**

    ```python
    import jax

    losses = jax.pmap(lambda x: jax.lax.pmean(x, "i"), axis_name="i")(x)
    print(losses[0])
    ```

    **After**

    ```python
    import jax
    import pmapx

    losses = jax.pmap(lambda x: jax.lax.pmean(x, "i"), axis_name="i")(x)
    print(pmapx.unreplicate(losses))
    ```

    **Safety.** The same value, on one device. Better still, return it with ``out_axes=None``: it is
    then replicated, and there is no axis to index.

    **Guide.** "``int`` indexing into sharded arrays" and "Appendix A".
    """

    code = "PMX521"
    names = known_names.PMAP | known_names.REPLICATE | known_names.PREFETCH

    def check(self, module: Module) -> Iterator[Finding]:
        for node, indexing in module.facts.indexings.items():
            if indexing.how == "index":
                yield self.finding(
                    module.place(node),
                    f"reads one shard of {origin(indexing.stacked, module)}: "
                    "a collective over all devices",
                    confidence=indexing.stacked.confidence,
                    hint=HINT,
                    because=indexing.stacked.place,
                )
