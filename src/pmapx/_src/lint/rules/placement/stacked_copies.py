import ast
from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule

_STACKS = ("stack", "array", "asarray", "concatenate")
_REPEATS = ("broadcast_to", "tile", "repeat")


class StackedCopies(Rule):
    """Copies of an array are stacked by hand, one per device.

    **What.** ``jnp.stack([x] * n)``, ``jnp.broadcast_to(x, (n,) + x.shape)``, ``jnp.tile`` and
    ``jnp.repeat``, where ``n`` is a number of devices.

    **Why.** All copies are first made on one device, which may run out of memory, and are then
    transferred. As with PMX533, JAX does not know that the copies are equal.

    **Before**

    ```python
    import jax
    import jax.numpy as jnp

    n = jax.local_device_count()
    params = jax.tree.map(lambda x: jnp.stack([x] * n), params)
    ```

    **After**

    ```python
    import jax
    from jax.sharding import NamedSharding, PartitionSpec as P

    params = jax.device_put(params, NamedSharding(mesh, P()))
    ```

    **Safety.** *After* has no leading axis: take the argument with ``in_axes=None`` or ``P()``.
    ``pmapx.replicate`` keeps the axis.

    **Guide.** "Option 1: Prevent unintended sharding (recommended)".
    """

    code = "PMX534"
    names = known_names.DEVICE_COUNTS | known_names.DEVICES

    def check(self, module: Module) -> Iterator[Finding]:
        for node, call in module.facts.calls.items():
            if isinstance(node, ast.Call) and node.args and _stacks(module, node, call.names):
                where = "on a single device"
                if not any(name.startswith("jax.") for name in call.names):
                    where = "on the host"
                yield self.finding(
                    module.place(node),
                    f"one copy per device is stacked {where} and transferred from there",
                    hint="jax.device_put(tree, NamedSharding(mesh, P())) and in_axes=None, "
                    "or pmapx.replicate, which keeps the axis",
                )


def _stacks(module: Module, call: ast.Call, called: frozenset[str]) -> bool:
    for name in called:
        owner, _, short = name.rpartition(".")
        if owner not in ("jax.numpy", "numpy"):
            continue
        if short in _STACKS:
            return _is_repeated_list(module, call.args[0])
        if short in _REPEATS and len(call.args) > 1:
            return _leads_with_count(module, call.args[1])
    return False


def _is_repeated_list(module: Module, node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = (node.left, node.right)
        has_list = any(isinstance(side, ast.List) and len(side.elts) == 1 for side in sides)
        return has_list and any(_is_device_count(module, side) for side in sides)
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
        generator = node.generators[0]
        is_same = isinstance(node.elt, ast.Name) and not (
            isinstance(generator.target, ast.Name) and generator.target.id == node.elt.id
        )
        counted = isinstance(generator.iter, ast.Call) and any(
            _is_device_count(module, arg) for arg in generator.iter.args
        )
        return is_same and counted
    return False


def _leads_with_count(module: Module, node: ast.expr) -> bool:
    """A shape whose first part is the number of devices."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _leads_with_count(module, node.left)
    if isinstance(node, (ast.Tuple, ast.List)):
        return bool(node.elts) and _is_device_count(module, node.elts[0])
    return _is_device_count(module, node)


def _is_device_count(module: Module, node: ast.expr) -> bool:
    return module.facts.is_result(node, known_names.DEVICE_COUNTS)
