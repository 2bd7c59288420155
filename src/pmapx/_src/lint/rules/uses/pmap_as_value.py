import ast
from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import find_sites
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule


class PmapAsValue(Rule):
    """``jax.pmap`` is used as a value.

    **What.** ``jax.pmap`` passed to a function (``map_fn=jax.pmap``), chosen
    (``jax.pmap if many else jax.jit``) or stored in an attribute, a dict or a default.

    **Why.** What is mapped, and over which axes, is decided elsewhere, so the use cannot be
    rewritten in place. Replace it with your own function around ``pmap``, and rewrite that
    once.

    **Before**

    ```python
    import jax

    mapper = jax.pmap if jax.device_count() > 1 else jax.jit
    ```

    **After**

    ```python
    import jax
    import pmapx

    mapper = pmapx.pmap if jax.device_count() > 1 else jax.jit
    ```

    **Safety.** ``pmapx.pmap`` takes the same arguments as ``jax.pmap``. A wrapper around
    ``shard_map`` works as well, if every use has the same axes.

    **Guide.** "Rewriting ``pmap`` to ``jit(shard_map)``".
    """

    code = "PMX505"
    names = known_names.PMAP

    def check(self, module: Module) -> Iterator[Finding]:
        sites = [site for site in find_sites(module) if site.kind == "value"]
        if sites:
            places = {module.place(r.node): r.node for r in module.facts.references.values()}
            for site in sites:
                yield self.finding(
                    site.name,
                    f"jax.pmap is {_manner(module, places[site.name])}: what is mapped is decided "
                    "elsewhere",
                    hint="use your own function here, and rewrite that once",
                )


def _manner(module: Module, node: ast.AST) -> str:
    parent = module.parent(node)
    if isinstance(parent, ast.IfExp):
        return "one of two choices"
    if isinstance(parent, ast.keyword):
        return f"passed as `{parent.arg}`" if parent.arg else "passed on"
    if isinstance(parent, ast.Call):
        return "passed to a function"
    if isinstance(parent, ast.arguments):
        return "a default"
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Dict)):
        return "stored"
    return "used as a value"
