"""The program whose compiled texts lie beside this file, one for each platform and release.

`cpu-*`: on 8 virtual devices as a mesh of 4 x 2, with a `pmax` in a `cond` beside it. `gpu-*` and
`tpu-*`: compiled for devices that were not there, with
`topologies.get_topology_desc("", "cuda", topology="1x8x1")` (4 x 2) and
`get_topology_desc(platform="tpu", topology_name="v5e:4x4")` (8 x 2). Paths were shortened.
"""

import jax
import jax.numpy as jnp
from jax import lax


def body(w, x):
    def step(w, _):
        g = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - lax.pmean(g, "data"), lax.psum(jnp.sum(x), ("data", "model"))

    w, losses = lax.scan(step, w, None, length=5)
    gathered = lax.all_gather(w, "model")
    scattered = lax.psum_scatter(x, "data", tiled=True)
    count = lax.axis_size("data")
    shifted = lax.ppermute(x, "data", [(i, (i + 1) % count) for i in range(count)])
    exchanged = lax.all_to_all(x.reshape(2, -1), "model", 0, 0)
    return w, losses, gathered, scattered, shifted, exchanged
