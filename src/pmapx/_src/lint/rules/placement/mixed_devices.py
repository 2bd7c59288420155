import ast
from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.interpreter import mixed_devices
from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule

_FUNCTIONS = ("jax.numpy.", "jax.lax.", "jax.nn.")


class MixedDevices(Rule):
    """A result of pmap is used together with an array that is committed to one device.

    **What.** An operator, a comparison or a function of ``jax.numpy``, ``jax.lax`` or ``jax.nn``
    with a result of a pmapped function and an array of ``jax.device_put(v, device)``, where the
    device is one of ``jax.devices()``. It is reported only if both are known.

    **Why.** The original pmap's results were transferred to the single device. Today both arrays
    are committed, and JAX raises ``ValueError: Received incompatible devices for jitted
    computation``. Under ``pmapx.install()`` and ``pmapx run`` the operators work as they did;
    functions of JAX, and of the program's own under ``jit``, do not.

    **Before**

    ```python
    import jax

    scale = jax.device_put(2.0, jax.devices()[0])
    losses = jax.pmap(lambda x: x * x)(batch)
    print(losses / scale)
    ```

    **After**

    ```python
    import jax

    scale = 2.0
    losses = jax.pmap(lambda x: x * x)(batch)
    print(losses / scale)
    ```

    **Safety.** The same values. Numbers, NumPy arrays and uncommitted arrays can be combined with
    arrays on any devices. To compute on the single device, as the original
    did, transfer the result: ``jax.device_put(losses, jax.devices()[0]) / scale``.

    **Guide.** "How can I fix my code for the new ``jax.pmap``?"
    """

    code = "PMX535"
    names = known_names.PMAP

    def check(self, module: Module) -> Iterator[Finding]:
        found: dict[ast.AST, mixed_devices.Met] = dict(module.facts.meetings)
        for node, call in module.facts.calls.items():
            if all(name.startswith(_FUNCTIONS) for name in call.names):
                met = mixed_devices.meeting([*call.args, *call.keywords.values()])
                if met is not None:
                    found[node] = met
        for node, (stacked, single) in found.items():
            yield self.finding(
                module.place(node),
                "combines an output of pmap, on several devices, with an array on one device (line "
                f"{single.place.line}), which JAX rejects",
                hint="leave the array uncommitted (no device in device_put), or transfer the "
                "result first: jax.device_put(result, device)",
                because=stacked.place,
            )
