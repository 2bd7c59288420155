"""A tutorial of pmap: a first map, axes, several arguments, collectives, and pmap with vmap.

Run it on any number of devices. Without an accelerator it uses 8 virtual CPU devices. On one
device, `oversubscribe=True` runs all indices of the mapped axis there.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pmapx

DEVICES = jax.device_count()
N = 8  # the size of every mapped axis below
pmap = partial(pmapx.pmap, oversubscribe=N > DEVICES)


def main() -> None:
    print(f"{DEVICES} device(s): {jax.devices()[0].platform}")
    first_map()
    axes()
    several_arguments()
    collectives()
    beside_vmap()


def first_map() -> None:
    """The leading axis is sharded. Each device runs the function on one slice."""
    x = jnp.arange(N * 3).reshape(N, 3)
    doubled = pmap(lambda x: x * 2)(x)
    assert np.array_equal(doubled, x * 2)
    print(f"first map: {x.shape} -> {doubled.shape} on {len(doubled.devices())} device(s)")


def axes() -> None:
    """in_axes selects the mapped axis. out_axes places it in the result. None: no mapped axis."""
    images = np.ones((28, 28, N), np.float32)  # the batch is the last axis
    means = pmap(jnp.mean, in_axes=2)(images)
    turned = pmap(jnp.transpose, in_axes=2, out_axes=-1)(images)
    # One value instead of N copies, since it is equal on all devices.
    biggest = pmap(lambda i: lax.pmax(i.max(), "i"), axis_name="i", in_axes=2, out_axes=None)(
        images
    )
    assert means.shape == (N,)
    assert turned.shape == (28, 28, N)
    assert biggest.shape == ()
    print(f"axes: means {means.shape}, turned {turned.shape}, biggest {biggest.shape}")


def several_arguments() -> None:
    """in_axes has one entry per argument. The entry of a pytree may be a pytree."""

    def predict(params: dict[str, jax.Array], x: jax.Array, power: int) -> jax.Array:
        return (params["w"] @ x + params["b"]) ** power

    params = {"w": np.ones((2, 3), np.float32), "b": np.arange(N, dtype=np.float32)}
    x = np.ones((N, 3), np.float32)
    mapped = pmap(
        predict,
        in_axes=({"w": None, "b": 0}, 0),  # weights replicated, one bias per device
        static_broadcasted_argnums=2,  # a compile-time constant
    )
    out = mapped(params, x, 2)
    assert np.array_equal(out[:, 0], (3 + np.arange(N)) ** 2)
    print(f"several arguments: {out.shape}, first column {np.asarray(out[:, 0]).astype(int)}")


def collectives() -> None:
    """With axis_name, devices communicate: sums, neighbors, gathers, indices."""

    @partial(pmap, axis_name="i")
    def talk(x: jax.Array) -> dict[str, jax.Array]:
        right = [(k, (k + 1) % N) for k in range(N)]
        return {
            "share": x / lax.psum(x, "i"),
            "from the left": lax.ppermute(x, "i", right),
            "rank": jnp.sum(lax.all_gather(x, "i") < x),
            "who am I": lax.axis_index("i"),
        }

    x = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.float32)
    out = talk(x)
    assert np.isclose(float(jnp.sum(out["share"])), 1)
    assert np.array_equal(out["from the left"], np.roll(x, 1))
    assert np.array_equal(out["who am I"], np.arange(N))
    for name, value in out.items():
        print(f"collectives: {name} {np.asarray(value).round(2)}")


def beside_vmap() -> None:
    """vmap vectorizes on one device. pmap uses one device per index. They compose."""

    def centered(x: jax.Array) -> jax.Array:
        return x - lax.pmean(x, ("rows", "columns"))

    x = np.arange(N * 5, dtype=np.float32).reshape(N, 5)
    on_one = jax.vmap(jax.vmap(centered, axis_name="columns"), axis_name="rows")(x)
    on_all = pmap(jax.vmap(centered, axis_name="columns"), axis_name="rows")(x)
    assert np.allclose(on_one, on_all)
    print(f"beside vmap: the same numbers, on {len(on_all.devices())} device(s) instead of 1")


if __name__ == "__main__":
    main()
