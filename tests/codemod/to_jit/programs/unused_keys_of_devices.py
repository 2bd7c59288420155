# jit: train_step
# A key for each device comes beside the batch, and draws nothing at a dropout rate of 0.
import collections

import jax
import jax.numpy as jnp
import numpy as np

RATE = 0.0


def dropped(key, x):
    if RATE == 0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - RATE, x.shape), x / (1 - RATE), 0)


def loss_fn(w, batch, keys):
    x = dropped(keys["dropout"], batch["x"])
    return jnp.mean((x @ w - batch["y"]) ** 2)


def train_step(w, batch, keys):
    loss, grads = jax.value_and_grad(loss_fn)(w, batch, keys)
    grads = jax.lax.pmean(grads, "batch")
    return w - 0.1 * grads, jax.lax.pmean(loss, "batch")


def batches(count):
    random, n = np.random.default_rng(0), jax.device_count()
    queue = collections.deque()
    for _ in range(count):
        x = random.normal(size=(n, 4, 3)).astype("float32")
        keys = np.asarray(jax.random.split(jax.random.PRNGKey(0), n))
        queue.append(({"x": x, "y": x.sum(-1)}, {"dropout": keys}))
    while queue:
        yield queue.popleft()


def main():
    step = jax.pmap(train_step, axis_name="batch")
    w = jax.device_put_replicated(jnp.ones(3) / 2, jax.local_devices())
    for batch, keys in batches(3):
        w, loss = step(w, batch, keys)
        print(float(loss[0]))
    print(w[0])


if __name__ == "__main__":
    main()
