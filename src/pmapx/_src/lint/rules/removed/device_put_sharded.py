import ast
from collections.abc import Iterator

from pmapx._src.analysis.facts import Reference
from pmapx._src.analysis.interpreter.lookup import dotted
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding, Fix
from pmapx._src.lint.references import uses_of
from pmapx._src.lint.rules import Rule
from pmapx._src.source.rewriting.edits import replacing


class DevicePutSharded(Rule):
    """``jax.device_put_sharded`` was removed.

    **What.** A use of ``jax.device_put_sharded``.

    **Why.** JAX 0.10 removed it: the use raises AttributeError.

    **Before**

    ```python
    import jax

    x = jax.device_put_sharded(shards, jax.local_devices())
    ```

    **After**

    ```python
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    mesh = Mesh(np.array(jax.local_devices()), ("i",))
    x = jax.device_put(np.stack(shards), NamedSharding(mesh, P("i")))
    ```

    **Safety.** The same array. ``np.stack`` is right for arrays on the host; for shards that are
    already on devices, ``pmapx.device_put_sharded`` transfers none of them twice. For trees, map
    the stack over the leaves, as the unsafe fix does.

    **Guide.** "Drop-in replacements for ``device_put_sharded`` and ``device_put_replicated``".
    """

    code = "PMX512"
    names = ("jax.device_put_sharded",)

    def check(self, module: Module) -> Iterator[Finding]:
        for reference, _ in uses_of(module, self.names):
            yield self.finding(
                module.place(reference.node),
                "jax.device_put_sharded was removed in JAX 0.10",
                hint="jax.device_put(np.stack(shards), NamedSharding(mesh, P(axis))), "
                "or pmapx.device_put_sharded",
                fix=placed(
                    module, reference, "jax.tree.map(lambda *x: jax.numpy.stack(x), *{value})"
                ),
                since=(0, 10),
            )


def placed(module: Module, reference: Reference, stacked: str) -> Fix | None:
    """Returns the fix that places a stack with ``jax.device_put``, one slice a device.

    ``stacked`` is an expression of the call's ``{value}`` and ``{devices}``.
    """
    call = module.parent(reference.node)
    is_plain = (
        dotted(reference.node) == reference.name
        and "jax" not in module.bound_names
        and isinstance(call, ast.Call)
        and call.func is reference.node
        and len(call.args) == 2
        and not call.keywords
        and isinstance(call.args[1], (ast.Name, ast.Attribute, ast.Call))
    )
    if not is_plain or not isinstance(call, ast.Call):
        return None
    value, devices = (module.text(node) for node in call.args)
    if "\n" in value + devices or (isinstance(call.args[1], ast.Call) and call.args[1].args):
        return None
    sharding = (
        f'jax.sharding.NamedSharding(jax.sharding.Mesh({devices}, ("i",)), '
        'jax.sharding.PartitionSpec("i"))'
    )
    text = f"jax.device_put({stacked.format(value=value, devices=devices)}, {sharding})"
    return Fix((replacing(module.place(call), text),), is_safe=False)
