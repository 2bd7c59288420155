import ast
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule
from pmapx._src.lint.rules.semantics.explicit_mesh import with_auto_axes


class DefaultAxisTypes(Rule):
    """``jax.make_mesh`` without ``axis_types`` depends on the release of JAX.

    **What.** A call of ``jax.make_mesh`` without ``axis_types`` whose mesh no ``shard_map`` is seen
    to use (else it is PMX552). It is reported with ``--target-jax``, or if the rule is selected.

    **Why.** The axes are Explicit by default since JAX 0.9, and were Auto before. With Explicit
    axes inside ``jax.set_mesh``, shardings are part of the types of arrays, and operations whose
    result has no unique sharding raise.

    **Before**

    ```python
    import jax

    mesh = jax.make_mesh((8,), ("i",))
    ```

    **After**

    ```python
    import jax
    from jax.sharding import AxisType

    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    ```

    **Safety.** The fix is right for code that was written for JAX 0.8 or earlier. It is unsafe:
    newer code may rely on explicit sharding, and should pass ``axis_types=(AxisType.Explicit,)``.

    **Guide.** It differs: "Rewriting ``pmap`` to ``jit(shard_map)``" leaves them out.
    """

    code = "PMX564"
    names = ("jax.make_mesh",)

    def check(self, module: Module) -> Iterator[Finding]:
        mapped = {mesh.place for mesh in module.project.meshes_mapped}
        for node, call in module.facts.calls.items():
            if _has_default_types(node, call.names) and (place := module.place(node)) not in mapped:
                yield self.finding(
                    place,
                    "this mesh has Explicit axes since JAX 0.9, and Auto axes before",
                    hint="axis_types=(AxisType.Auto,) or (AxisType.Explicit,) for each axis",
                    fix=with_auto_axes(module, place),
                    since=(0, 9),
                    is_deprecation=True,
                )


def _has_default_types(node: ast.AST, names: frozenset[str]) -> bool:
    return (
        isinstance(node, ast.Call)
        and names == {"jax.make_mesh"}
        and len(node.args) < 3
        and not any(isinstance(argument, ast.Starred) for argument in node.args)
        and not any(keyword.arg in (None, "axis_types") for keyword in node.keywords)
    )
