# jit: train_step, eval_step
# The last batch has one example for each device, and the loss keeps its device axis.
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


@partial(jax.pmap, axis_name="batch", donate_argnums=0)
def train_step(params, x, y):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((x @ p["w"] + p["b"] - y) ** 2))(params)
    grads = jax.lax.pmean(grads, axis_name="batch")
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return params, jax.lax.pmean(loss, axis_name="batch")


@partial(jax.pmap, axis_name="batch")
def eval_step(params, x):
    return jax.lax.pmean(jnp.mean(x @ params["w"] + params["b"]), axis_name="batch")


def main():
    n = jax.local_device_count()
    xs = np.random.default_rng(0).normal(size=(n * 5, 6)).astype(np.float32)
    ys = xs.sum(-1)
    params = {"w": np.zeros(6, np.float32), "b": np.float32(0)}
    params = jax.device_put_replicated(params, jax.local_devices())
    for i in range(0, n * 5, n * 2):
        x, y = xs[i : i + n * 2], ys[i : i + n * 2]
        params, loss = train_step(params, x.reshape(n, -1, 6), y.reshape(n, -1))
        print("loss", float(loss.mean()))
    print("mean", float(eval_step(params, xs.reshape(n, -1, 6))[0]))


if __name__ == "__main__":
    main()
