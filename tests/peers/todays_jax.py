"""Runs one function of a test module with JAX's own pmap: module, function, file for the result.

The names that JAX has removed are put back with the stand-ins of JAX's migration guide, so that
programs that use them have something to be compared with.
"""

import importlib
import pickle
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def device_put_replicated(tree, devices):
    sharding = NamedSharding(Mesh(np.array(devices), ("x",)), P("x"))
    stack = lambda x: jax.device_put(jnp.stack([x] * len(devices)), sharding)
    return jax.tree.map(stack, tree)


def device_put_sharded(shards, devices):
    sharding = NamedSharding(Mesh(np.array(devices), ("x",)), P("x"))
    stack = lambda *xs: jax.device_put(jnp.stack(xs), sharding)
    return jax.tree.map(stack, *shards)


def main(module, function, result):
    for stand_in in (device_put_replicated, device_put_sharded):
        if not hasattr(jax, stand_in.__name__):
            setattr(jax, stand_in.__name__, stand_in)
    args = pickle.load(sys.stdin.buffer)
    program = getattr(importlib.import_module(module), function)
    Path(result).write_bytes(pickle.dumps(program(*args)))
    assert "pmapx._src.legacy" not in sys.modules, "the comparison must not run pmapx"


if __name__ == "__main__":
    main(*sys.argv[1:])
