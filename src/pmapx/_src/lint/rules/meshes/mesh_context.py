import ast
import re
from collections.abc import Iterator

from pmapx._src.analysis import known_names, syntax
from pmapx._src.analysis.interpreter import lookup
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import UNKNOWN, Confidence, Mesh, of_kind
from pmapx._src.lint.finding import Finding, Fix
from pmapx._src.lint.references import uses_of
from pmapx._src.lint.rules import Rule
from pmapx._src.source.rewriting import added_imports
from pmapx._src.source.rewriting.edits import between, ends, starts

_HELD = "jax.interpreters.pxla.thread_resources"
_WITH_MESH = re.compile(r"with\b.*(?i:mesh)\b")


class MeshContext(Rule):
    """``with mesh:`` is deprecated.

    **What.** A ``with`` statement that enters a ``Mesh``, and ``pxla.thread_resources``, which
    holds that mesh. Confidence is medium where a mesh is only known by its name, which ends in
    ``mesh``. Both are reported with ``--target-jax``, or if the rule is selected.

    **Why.** JAX warns since 0.10.1, and of ``thread_resources`` since 0.8.2. ``with mesh:`` is read
    by ``pjit`` (PMX561) and ``with_sharding_constraint``, and by little else; ``jax.set_mesh`` sets
    the mesh for all of JAX.

    **Before**

    ```python
    import jax
    from jax.sharding import Mesh

    mesh = Mesh(jax.devices(), ("i",))
    with mesh:
        state = step(state)
    ```

    **After**

    ```python
    import jax
    from jax.sharding import Mesh

    mesh = Mesh(jax.devices(), ("i",))
    with jax.set_mesh(mesh):
        state = step(state)
    ```

    **Safety.** The fix is unsafe. Inside ``jax.set_mesh``, arrays that are made without a sharding
    are placed on the devices of the mesh, a ``pjit`` no longer finds its mesh, Explicit axes take
    effect, and the statement raises under ``jit``.

    **Guide.** The guide does not mention it.
    """

    code = "PMX562"
    # A mesh may come from anywhere, and is then known by what it is called.
    names = known_names.MESH | {_HELD, "mesh:", "mesh,"}

    def check(self, module: Module) -> Iterator[Finding]:
        reads = list(uses_of(module, (_HELD,)))
        for reference, _ in reads:
            yield self.finding(
                module.place(reference.node),
                f"{_HELD} is deprecated since JAX 0.8.2",
                hint="jax.sharding.get_abstract_mesh() inside jax.set_mesh(mesh)",
                since=(0, 8, 2),
                is_deprecation=True,
            )
        entered = module.facts.entered_meshes
        for node in [*entered, *(node for node in _called_mesh(module) if node not in entered)]:
            made = list(of_kind(entered.get(node, UNKNOWN), Mesh))
            if not made or any(mesh.made_by != "AbstractMesh" for mesh in made):
                yield self.finding(
                    module.place(node),
                    "entering a mesh by `with` is deprecated since JAX 0.10.1",
                    confidence=Confidence.HIGH if made else Confidence.MEDIUM,
                    hint="with jax.set_mesh(mesh):",
                    # What reads the mesh in the old way would find none.
                    fix=_fix(module, node) if not reads else None,
                    since=(0, 10, 1),
                    is_deprecation=True,
                )


def _called_mesh(module: Module) -> Iterator[ast.expr]:
    """Yields what ``with`` statements of a file that uses JAX enter and that is called a mesh."""
    if _WITH_MESH.search(module.source.text) is None or not any(
        reference.name.startswith("jax.") for reference in module.facts.references.values()
    ):
        return
    for statement in syntax.statements(module.source.tree):
        if isinstance(statement, ast.With):
            for item in statement.items:
                name = (lookup.dotted(item.context_expr) or "").rpartition(".")[2]
                if name.lower().endswith("mesh"):
                    yield item.context_expr


def _fix(module: Module, node: ast.expr) -> Fix | None:
    around = module.parent(node)
    # ``as`` binds the mesh, and nothing with ``jax.set_mesh``.
    if not isinstance(around, ast.withitem) or around.optional_vars is not None:
        return None
    place = module.place(node)
    opening = between(starts(place), starts(place), "jax.set_mesh(")
    closing = between(ends(place), ends(place), ")")
    if "jax" in module.bound_names:
        return None
    if module.binds("jax", "jax"):
        return Fix((opening, closing), is_safe=False)
    added = added_imports.beside(module.source, "import jax", node)
    if added is None or module.env.find("jax") is not None:
        return None
    return Fix((opening, closing, added), is_safe=False)
