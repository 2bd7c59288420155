import ast
from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule


class MeshOfProcesses(Rule):
    """A mesh has one device per process.

    **What.** ``jax.make_mesh((jax.process_count(),), ...)``: a shape that is the number of
    processes and nothing else, or ``jax.devices()[:jax.process_count()]``.

    **Why.** A mesh consists of devices, and each process usually has several. One device per
    process leaves the others idle, and all devices of the mesh may belong to the first process.

    **Before**

    ```python
    import jax

    mesh = jax.make_mesh((jax.process_count(),), ("batch",))
    ```

    **After**

    ```python
    import jax
    from jax.sharding import AxisType

    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    ```

    **Safety.** It changes the sharding: into as many shards as there are devices. A mesh of
    two axes, ``(jax.process_count(), jax.local_device_count())``, is right and is not reported.

    **Guide.** The guide does this: "The Migration Pattern: 'Stitching'".
    """

    code = "PMX553"
    names = known_names.PROCESS_COUNTS

    def check(self, module: Module) -> Iterator[Finding]:
        for node, call in module.facts.calls.items():
            if not isinstance(node, ast.Call) or not node.args:
                continue
            shape = _shape(node, call.names)
            if shape is not None and _counts_processes_only(module, shape):
                yield self.finding(
                    module.place(node),
                    "this mesh has one device per process; it must contain all devices",
                    hint="jax.device_count(), or (jax.process_count(), "
                    "jax.local_device_count()) with two axes",
                )


def _shape(call: ast.Call, names: frozenset[str]) -> ast.expr | None:
    first = call.args[0]
    if names & {"jax.make_mesh", "jax.experimental.mesh_utils.create_device_mesh"}:
        return first
    if any(name.rpartition(".")[2] == "Mesh" and name.startswith("jax.") for name in names):
        for part in ast.walk(first):
            if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Slice):
                return part.slice.upper
            is_reshape = isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)
            if is_reshape and part.func.attr == "reshape" and len(part.args) == 1:  # type: ignore[union-attr,attr-defined]
                return part.args[0]  # type: ignore[attr-defined]
    return None


def _counts_processes_only(module: Module, shape: ast.expr) -> bool:
    parts = shape.elts if isinstance(shape, (ast.Tuple, ast.List)) else [shape]
    counts = known_names.PROCESS_COUNTS
    others = [part for part in parts if not module.facts.is_result(part, counts)]
    is_one = all(isinstance(part, ast.Constant) and part.value == 1 for part in others)
    return len(others) < len(parts) and is_one
