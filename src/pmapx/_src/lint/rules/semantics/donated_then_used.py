from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Confidence
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule


class DonatedThenUsed(Rule):
    """An argument is used after it was donated.

    **What.** A variable is donated to a pmapped function with ``donate_argnums``, and used again
    before it is reassigned. A loop that donates the same variable in each iteration counts too.

    **Why.** The call reuses its buffers, so the use raises ``Array has been deleted`` on devices
    that support donation. It may work on CPU and then fail on the accelerator.

    **Before**

    ```python
    import jax

    step = jax.pmap(train_step, donate_argnums=(0,))
    new_state = step(state, batch)
    save(state)
    ```

    **After**

    ```python
    import jax

    step = jax.pmap(train_step, donate_argnums=(0,))
    state = step(state, batch)
    save(state)
    ```

    **Safety.** No automatic fix: use the result, copy before the call, or do not donate.

    **Guide.** "Buffer donation with ``donate_argnums``".
    """

    code = "PMX542"
    names = known_names.PMAP

    def check(self, module: Module) -> Iterator[Finding]:
        for node, donated in module.facts.donated_uses.items():
            text = module.text(node)
            yield self.finding(
                module.place(node),
                f"`{text}` was donated by the call on line {donated.by.line} "
                f"(argument {donated.argument}) and is used again",
                confidence=Confidence.HIGH if donated.on_every_path else Confidence.MEDIUM,
                hint="use the result of the call in its place, or do not donate",
            )
