from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.references import uses_of
from pmapx._src.lint.renames import renamed
from pmapx._src.lint.rules import Rule

RENAMED = {
    "jax.host_id": "jax.process_index",
    "jax.host_ids": "jax.process_indices",
    "jax.host_count": "jax.process_count",
    "jax.lib.xla_bridge.host_id": "jax.process_index",
    "jax.lib.xla_bridge.host_ids": "jax.process_indices",
    "jax.lib.xla_bridge.host_count": "jax.process_count",
}


class HostNames(Rule):
    """``jax.host_id`` and ``jax.host_count`` were renamed.

    **What.** ``jax.host_id``, ``jax.host_ids`` and ``jax.host_count``, also of
    ``jax.lib.xla_bridge``.

    **Why.** They are deprecated since JAX 0.2.13 in favor of names that describe what is
    counted: a host can run several processes. Those of ``jax.lib.xla_bridge`` were removed.

    **Before**

    ```python
    import jax

    is_first = jax.host_id() == 0
    ```

    **After**

    ```python
    import jax

    is_first = jax.process_index() == 0
    ```

    **Safety.** The fix is safe: the same number.

    **Guide.** "Host-local vs. Global Views", which uses the word process.
    """

    code = "PMX518"
    names = RENAMED

    def check(self, module: Module) -> Iterator[Finding]:
        for reference, entry in uses_of(module, RENAMED):
            yield self.finding(
                module.place(reference.node),
                f"{entry} is the old name of {RENAMED[entry]}",
                hint=RENAMED[entry],
                fix=renamed(module, reference, RENAMED),
            )
