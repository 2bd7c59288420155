from collections.abc import Iterator
from typing import Any

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Dict, Items, Value, constant
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule


class NegativeAxes(Rule):
    """``in_axes`` or ``out_axes`` is negative.

    **What.** ``out_axes=-1`` or ``in_axes=-1``, also inside a tuple or a dict of axes.

    **Why.** The original raised AssertionError. Today's ``jax.pmap`` silently uses another axis:
    for a function that returns ``(4,)`` on 8 devices, the result has shape ``(32, 1)`` instead of
    ``(4, 8)``.

    **Before**

    ```python
    import jax

    f = jax.pmap(g, out_axes=-1)
    ```

    **After**

    ```python
    import pmapx

    f = pmapx.pmap(g, out_axes=-1)
    ```

    **Safety.** ``pmapx.pmap`` counts from the end, as ``vmap`` does. With ``jax.pmap``, write the
    axis as a non-negative number.

    **Guide.** The guide does not mention it.
    """

    code = "PMX541"
    names = known_names.PMAP

    def check(self, module: Module) -> Iterator[Finding]:
        for node, making in module.facts.makings.items():
            for option in ("in_axes", "out_axes"):
                negative = _negative(making.options.get(option, frozenset()))
                if negative is not None:
                    yield self.finding(
                        module.place(node),
                        f"{option} has {negative}, for which jax.pmap silently uses another axis",
                        hint="write a non-negative axis, or use pmapx.pmap",
                    )


def _negative(axes: Value) -> Any:
    literal = constant(axes)
    if type(literal) is int:
        return literal if literal < 0 else None
    for fact in axes:
        parts: list[Value] = []
        if isinstance(fact, Items):
            parts = list(fact.items)
        elif isinstance(fact, Dict):
            parts = [held for _, held in fact.items]
        for part in parts:
            found = _negative(part)
            if found is not None:
                return found
    return None
