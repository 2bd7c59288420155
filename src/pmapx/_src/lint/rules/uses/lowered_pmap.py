from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Confidence
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule


class LoweredPmap(Rule):
    """A pmapped function is lowered and compiled by hand in a multi-process program.

    **What.** ``jax.pmap(f).lower(*args).compile()`` in code that also reads its process index or
    count. Without such a sign the finding has low confidence.

    **Why.** What ``.compile()`` returns takes and returns *global* arrays, while the pmapped
    function itself takes and returns each process's host-local arrays. With several processes the
    results are wrong or the call fails.

    **Before**

    ```python
    import jax

    jax.distributed.initialize()
    compiled = jax.pmap(train_step, axis_name="batch").lower(state, batch).compile()
    ```

    **After**

    ```python
    import jax
    import pmapx

    jax.distributed.initialize()
    compiled = pmapx.pmap(train_step, axis_name="batch").lower(state, batch).compile()
    ```

    **Safety.** The same values in one process, the right ones in several. Staying with
    ``jax.pmap``, convert by hand: ``multihost_utils.host_local_array_to_global_array`` before
    the call and ``global_array_to_host_local_array`` after it.

    **Guide.** "Using ``jax.stages.Lowered`` returned by ``jax.pmap(f).lower(*args)``".
    """

    code = "PMX504"
    names = known_names.PMAP

    def check(self, module: Module) -> Iterator[Finding]:
        has_processes = any(
            reference.name in known_names.PROCESSES
            for reference in module.facts.references.values()
        )
        confidence = Confidence.HIGH if has_processes else Confidence.LOW
        for node, site in module.facts.lowerings.items():
            if site in module.project.other_pmaps:
                continue
            yield self.finding(
                module.place(node),
                f"the pmap of line {site.line} is lowered and compiled: the result takes global "
                "arrays where the pmapped function takes host-local ones",
                confidence=confidence,
                hint="use pmapx.pmap(...).lower(...), or convert with multihost_utils around it",
            )
