import ast
import re
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding, Fix
from pmapx._src.lint.rules import Rule
from pmapx._src.source.rewriting.edits import between, ends, starts

_KEYWORD = re.compile(r"\s*,?\s*axis_shapes\s*=\s*")


class AxisShapesKeyword(Rule):
    """``jax.make_mesh`` no longer accepts ``axis_shapes``.

    **What.** A call of ``jax.make_mesh`` with ``axis_shapes=``.

    **Why.** The parameter was renamed to ``axis_sizes`` after JAX 0.10: the call raises
    TypeError. Before that, ``axis_sizes`` does not exist. By position, the argument works in
    every release.

    **Before**

    ```python
    import jax

    mesh = jax.make_mesh(axis_shapes=(4, 2), axis_names=("i", "j"))
    ```

    **After**

    ```python
    import jax

    mesh = jax.make_mesh((4, 2), axis_names=("i", "j"))
    ```

    **Safety.** The fix is safe: the same mesh.

    **Guide.** The guide does not mention it.
    """

    code = "PMX563"
    names = ("jax.make_mesh",)

    def check(self, module: Module) -> Iterator[Finding]:
        for node, call in module.facts.calls.items():
            if not isinstance(node, ast.Call) or "jax.make_mesh" not in call.names:
                continue
            for keyword in node.keywords:
                if keyword.arg == "axis_shapes":
                    yield self.finding(
                        module.place(keyword),
                        "axis_shapes was renamed to axis_sizes after JAX 0.10",
                        hint="pass it by position, which works in every release",
                        fix=_fix(module, node, keyword) if len(call.names) == 1 else None,
                        since=(0, 11),
                    )


def _fix(module: Module, call: ast.Call, keyword: ast.keyword) -> Fix | None:
    source, given = module.source, module.place(keyword.value)
    if call.args or any(other.arg is None for other in call.keywords):
        return None
    position = call.keywords.index(keyword)
    first = starts(module.place(call.keywords[0]))
    before = ends(module.place(call.keywords[position - 1].value)) if position else first
    # Anything else before the value, such as a parenthesis or a comment, would be lost.
    if _KEYWORD.fullmatch(source.between(before, starts(given))) is None:
        return None
    if not position:
        return Fix((between(first, starts(given)),))
    text = source.segment(given)
    return Fix((between(first, first, f"{text}, "), between(before, ends(given))))
