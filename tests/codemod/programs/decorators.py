"""The many ways to write a mapped function as a decorator."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax import pmap as jax_pmap

AXIS_NAME = "devices"
pmap = functools.partial(jax.pmap, axis_name=AXIS_NAME)
CALLS = []


def counted(fun):
    @functools.wraps(fun)
    def wrapper(*args, **kwargs):
        CALLS.append(fun.__name__)
        return fun(*args, **kwargs)

    return wrapper


@jax.pmap
def double(x):
    """Doubles."""
    return 2 * x


@pmap
def total(x):
    return lax.psum(x, AXIS_NAME)


@partial(jax_pmap, axis_name="rows", in_axes=(0, None))
def scale(x, by):
    return x * by / lax.psum(jnp.abs(x).sum(), "rows")


@counted
@partial(jax.pmap, axis_name="rows", static_broadcasted_argnums=(1,))
def shift(x, by):
    n = lax.psum(1, "rows")
    return lax.ppermute(x, "rows", [(i, (i + by) % n) for i in range(n)])


@partial(pmap, donate_argnums=(0,), out_axes=(0, None))
def accumulate(total, x):
    return total + x, lax.pmax(jnp.max(x), AXIS_NAME)


class Layer:
    """Methods that are mapped where they are defined, the object itself static."""

    def __init__(self, width):
        self.width = width

    @partial(jax.pmap, static_broadcasted_argnums=0)
    def apply(self, x):
        return jnp.tile(x, self.width)

    @staticmethod
    @jax.pmap
    def negate(x):
        return -x


def main():
    n = jax.local_device_count()
    x = np.arange(3.0 * n, dtype=np.float32).reshape(n, 3)
    results = {"double": double(x), "total": total(x), "scale": scale(x, 2.0)}
    results["shift"] = [shift(x, by) for by in (1, 2)]
    running = jnp.zeros_like(x)
    for _ in range(2):
        running, top = accumulate(running, x)
    results["accumulated"] = running, top
    layer = Layer(2)
    results["layer"] = layer.apply(x), Layer.negate(x)
    results["names"] = [len(CALLS), len(double.__name__)]
    print(double.__name__, CALLS)
    return jax.tree.map(np.asarray, results)


if __name__ == "__main__":
    main()
