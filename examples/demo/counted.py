"""Runs a program and counts what JAX compiles: `counted.py RESULT WAY PROGRAM ARGS`.

WAY is `plain`, `pmapx` (installed, as with `pmapx run`) or `stand-in`: `jax.pmap`, with the
removed function restored as in JAX's migration guide.
"""

import json
import runpy
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def main() -> None:
    _, result, way, program, *args = sys.argv
    compiled = []

    def listen(event: str, duration: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    if way == "pmapx":
        import pmapx

        pmapx.install()
    elif way == "stand-in":
        jax.device_put_replicated = stand_in
    sys.argv = [program, *args]
    runpy.run_path(program, run_name="__main__")
    with open(result, "w") as file:
        json.dump({"compiles": len(compiled), "seconds": sum(compiled)}, file)


def stand_in(tree: object, devices: list[jax.Device]) -> object:
    """Stacks all copies on one device, then shards them."""
    sharding = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec("x"))
    return jax.tree.map(lambda x: jax.device_put(jnp.stack([x] * len(devices)), sharding), tree)


if __name__ == "__main__":
    main()
