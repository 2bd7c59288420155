import ast
from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Confidence
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class NestedPmap(Rule):
    """A pmap is inside another.

    **What.** ``pmap(pmap(f))``, or a pmapped function that is called from a function that is
    itself pmapped.

    **Why.** Today's ``jax.pmap`` does not nest: it raises ``ValueError: The context mesh ...
    should match the mesh passed to shard_map``. The original did. ``pmapx.pmap`` nests; by
    hand it is one ``shard_map`` over a mesh with an axis for each pmap.

    **Before**

    ```python
    import jax

    f = jax.pmap(jax.pmap(g, axis_name="j"), axis_name="i")
    ```

    **After**

    ```python
    import jax
    from jax.sharding import AxisType, PartitionSpec as P

    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    f = jax.jit(
        jax.shard_map(
            lambda x: g(x[0, 0])[None, None],
            mesh=mesh,
            in_specs=P("i", "j"),
            out_specs=P("i", "j"),
            check_vma=False,
        )
    )
    ```

    **Safety.** The same values; the sizes of both axes must be known where the mesh is made.

    **Guide.** "``ValueError: The context mesh ... should match the mesh passed to shard_map``"
    and "Multiple axes of parallelism".
    """

    code = "PMX502"
    names = known_names.PMAP

    def check(self, module: Module) -> Iterator[Finding]:
        for making in module.facts.makings.values():
            if making.is_nested:
                yield self.finding(
                    making.site,
                    "pmap of a pmapped function: today's jax.pmap does not nest",
                    hint="one shard_map over a mesh with both axes, or pmapx.pmap, which nests",
                )
        for node, call in module.facts.invocations.items():
            if call.is_under_map:
                yield self.finding(
                    module.place(node),
                    "a pmapped function is called inside a function that is itself pmapped "
                    f"(its pmap is on line {call.mapped.site.line})",
                    confidence=_confidence(module, node),
                    hint="one shard_map over a mesh with both axes, or pmapx.pmap, which nests",
                )


def _confidence(module: Module, node: ast.AST) -> Confidence:
    """Doubts a call that may not be reached: a function may ask first whether it is mapped."""
    is_conditional, parent = False, module.parent(node)
    while not isinstance(parent, (*_FUNCTIONS, ast.Module)):
        is_conditional |= isinstance(parent, (ast.If, ast.IfExp))
        parent = module.parent(parent)
    if not is_conditional:
        return Confidence.HIGH
    is_in_mapped = any(f in module.project.mapped for f in module.functions_around(node))
    return Confidence.MEDIUM if is_in_mapped else Confidence.LOW
