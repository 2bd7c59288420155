"""PMX552: a mesh that is explicit by default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule


class ExplicitMesh(Rule):
    """``jax.make_mesh`` without ``axis_types`` feeds a ``shard_map``.

    **What.** A mesh made by ``jax.make_mesh`` that does not say its axis types, used by a
    ``shard_map`` with ``in_specs``.

    **Why.** The axes are Explicit by default today. A call with arrays that do not lie on the
    mesh yet, such as those of NumPy, raises ``ValueError``: the ``in_specs`` do not match. JAX's
    guide makes its meshes in this way.

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

    **Safety.** Safe for code that came from pmap. Code that is written for explicit sharding
    should say so: ``axis_types=(AxisType.Explicit,)``.

    **Guide.** It says otherwise: "Rewriting ``pmap`` to ``jit(shard_map)``" leaves them out.
    """

    code: ClassVar[str] = "PMX552"

    def check(self, module: Module) -> Iterator[Finding]:
        """Gives each such mesh that is made in this module."""
        for mesh, used in module.project.meshes_mapped.items():
            is_here = mesh.place.path == module.path
            if is_here and mesh.made_by == "make_mesh" and not mesh.has_axis_types:
                where = "" if used.path == module.path else f" of {used.path}"
                yield self.finding(
                    mesh.place,
                    "this mesh has Explicit axes by default, and the shard_map on line "
                    f"{used.line}{where} refuses arrays that do not lie on it yet",
                    hint="axis_types=(AxisType.Auto,) for each axis, or jax.sharding.Mesh(...)",
                )
