import ast
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding, Fix
from pmapx._src.lint.rules import Rule
from pmapx._src.source.rewriting.edits import between, starts

_CLIP = "jax.numpy.clip"
_RENAMED = {"a_min": "min", "a_max": "max"}


class ClipKeywords(Rule):
    """``jnp.clip`` no longer accepts ``a_min`` and ``a_max``.

    **What.** A call of ``jnp.clip`` with ``a_min=`` or ``a_max=``.

    **Why.** JAX 0.10 removed them in favor of ``min`` and ``max``: the call raises TypeError.
    ``pmapx.install()`` and ``pmapx run`` accept the old keywords.

    **Before**

    ```python
    import jax.numpy as jnp

    perplexity = jnp.clip(jnp.exp(loss), a_max=1e4)
    ```

    **After**

    ```python
    import jax.numpy as jnp

    perplexity = jnp.clip(jnp.exp(loss), max=1e4)
    ```

    **Safety.** The fix is safe: the same argument by its current name.

    **Guide.** The guide does not mention it.
    """

    code = "PMX510"
    names = (_CLIP,)

    def check(self, module: Module) -> Iterator[Finding]:
        for node, call in module.facts.calls.items():
            if not isinstance(node, ast.Call) or _CLIP not in call.names:
                continue
            for keyword in node.keywords:
                if keyword.arg not in _RENAMED:
                    continue
                start, current = starts(module.place(keyword)), _RENAMED[keyword.arg]
                edit = between(start, (start[0], start[1] + len(keyword.arg)), current)
                yield self.finding(
                    module.place(keyword),
                    f"jnp.clip takes no {keyword.arg} since JAX 0.10",
                    hint=f"pass {current}=, which works since JAX 0.4.27",
                    fix=Fix((edit,)) if len(call.names) == 1 else None,
                    since=(0, 10),
                )
