import ast
from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding, Fix
from pmapx._src.lint.rules import Rule
from pmapx._src.source.rewriting.edits import keeping


class PmapUnderJit(Rule):
    """A pmapped function is called under ``jax.jit``.

    **What.** ``jax.jit(jax.pmap(f))``, or a pmapped function that a jitted one calls.

    **Why.** ``jax.pmap`` is meant to be the outermost transform. Under ``jit`` its inputs are
    gathered and resharded inside the program, and in a multi-process program the host-local
    arrays are treated as global ones. ``pmap`` already compiles: the ``jit`` adds nothing.

    **Before**

    ```python
    import jax

    step = jax.jit(jax.pmap(train_step, axis_name="batch"))
    ```

    **After**

    ```python
    import jax

    step = jax.pmap(train_step, axis_name="batch")
    ```

    **Safety.** The fix removes a ``jit`` that is directly around the ``pmap``. It is safe: the
    results do not change. If the jitted function does more than call the pmapped one, move the call
    out of it, or use ``jax.shard_map``, which works under ``jit``.

    **Guide.** "Transforming ``jax.pmap`` e.g., ``jax.jit``".
    """

    code = "PMX503"
    names = known_names.PMAP

    def check(self, module: Module) -> Iterator[Finding]:
        for node, mapped in module.facts.jitted_maps.items():
            yield self.finding(
                module.place(node),
                f"jit of a pmapped function (its pmap is on line {mapped.site.line})",
                hint="remove the jit: pmap already compiles the function",
                fix=_without_jit(module, node),
            )
        for node, call in module.facts.invocations.items():
            if call.is_under_jit and not call.is_under_map:
                yield self.finding(
                    module.place(node),
                    "a pmapped function is called inside a jitted one "
                    f"(its pmap is on line {call.mapped.site.line})",
                    hint="call it outside the jit, or use jax.shard_map, which works under jit",
                )


def _without_jit(module: Module, node: ast.AST) -> Fix | None:
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    inner = node.args[0]
    if not isinstance(inner, ast.Call):
        return None
    return Fix(keeping(module.place(node), module.place(inner)))
