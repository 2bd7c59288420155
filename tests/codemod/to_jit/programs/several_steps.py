# jit: many_steps
# One call makes several steps: it scans over the batches of a device, (steps, examples, features).
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

STEPS = 3


def loss_fn(w, x, y):
    return jnp.mean((jnp.tanh(x @ w) - y) ** 2)


def one_step(w, batch):
    loss, grads = jax.value_and_grad(loss_fn)(w, *batch)
    return w - 0.1 * lax.pmean(grads, "i"), lax.pmean(loss, "i")


@partial(jax.pmap, axis_name="i", donate_argnums=(0,))
def many_steps(w, xs, ys):
    return lax.scan(one_step, w, (xs, ys))


def main():
    n = jax.device_count()
    random = np.random.default_rng(0)
    w = jax.device_put_replicated(jnp.zeros(5), jax.devices())
    for epoch in range(3):
        xs = random.normal(size=(n, STEPS, 2, 5)).astype(np.float32)
        w, losses = many_steps(w, xs, np.sin(xs.sum(-1)))
        print(epoch, *np.asarray(losses[0]).tolist())


if __name__ == "__main__":
    main()
