import ast
from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Place
from pmapx._src.lint.finding import Finding, Fix
from pmapx._src.lint.rules import Rule
from pmapx._src.source.rewriting import added_imports, call_edits


class ExplicitMesh(Rule):
    """A mesh without ``axis_types`` is used by a ``shard_map``.

    **What.** A mesh made by ``jax.make_mesh`` without ``axis_types``, used by a ``shard_map`` with
    ``in_specs``. PMX564 reports the others.

    **Why.** The axes are Explicit by default since JAX 0.9; they were Auto before. A call
    with arrays that are not placed on the mesh yet, such as NumPy arrays, raises ``ValueError``:
    the ``in_specs`` do not match. JAX's guide makes its meshes in this way.

    **Before**

    ```python
    import jax
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((8,), ("i",))
    f = jax.shard_map(g, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    ```

    **After**

    ```python
    import jax
    from jax.sharding import AxisType, PartitionSpec as P

    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    f = jax.shard_map(g, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    ```

    **Safety.** The fix is right for code that came from pmap; it is unsafe, since other code may be
    written for explicit sharding. That code should pass ``axis_types=(AxisType.Explicit,)``.

    **Guide.** It differs: "Rewriting ``pmap`` to ``jit(shard_map)``" leaves them out.
    """

    code = "PMX552"
    names = known_names.SHARD_MAP

    def check(self, module: Module) -> Iterator[Finding]:
        for mesh, used in module.project.meshes_mapped.items():
            is_here = mesh.place.path == module.path
            if is_here and mesh.made_by == "make_mesh" and not mesh.has_axis_types:
                where = "" if used.path == module.path else f" of {used.path}"
                yield self.finding(
                    mesh.place,
                    "this mesh has Explicit axes by default, and the shard_map on line "
                    f"{used.line}{where} rejects arrays that are not placed on it yet",
                    hint="axis_types=(AxisType.Auto,) for each axis, or jax.sharding.Mesh(...)",
                    fix=with_auto_axes(module, mesh.place),
                    since=(0, 9),
                )


def with_auto_axes(module: Module, place: Place) -> Fix | None:
    """Returns the fix that gives a call of ``make_mesh`` the types of its axes."""
    call = module.call_at(place)
    if call is None:
        return None
    names = call.args[1] if len(call.args) > 1 else None
    names = next((k.value for k in call.keywords if k.arg == "axis_names"), names)
    if not isinstance(names, (ast.Tuple, ast.List)):
        return None
    has_name = module.binds("AxisType", "jax.sharding.AxisType")
    has_jax = module.binds("jax", "jax")
    axis_type = "jax.sharding.AxisType" if has_jax and not has_name else "AxisType"
    added = None
    if not has_name and not has_jax:
        added = added_imports.beside(module.source, "from jax.sharding import AxisType", call)
        if added is None:
            return None
    times = f" * {len(names.elts)}" if len(names.elts) > 1 else ""
    edits = call_edits.with_keyword(module.source, call, f"axis_types=({axis_type}.Auto,){times}")
    if not edits:
        return None
    return Fix((*edits, added) if added else tuple(edits), is_safe=False)
