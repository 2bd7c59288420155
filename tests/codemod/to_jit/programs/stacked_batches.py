# jit: train_step, predict
# Batches come with a device axis from a queue, and results go where nobody follows them.
import collections

import jax
import jax.numpy as jnp
import numpy as np


def batches(count, size):
    random = np.random.default_rng(0)
    queue = collections.deque()
    for _ in range(count):
        x = random.normal(size=(jax.device_count(), size, 3)).astype(np.float32)
        queue.append({"x": x, "y": x.sum(-1) ** 2})
    while queue:
        yield queue.popleft()


def loss_fn(w, batch):
    return jnp.mean((jnp.tanh(batch["x"] @ w["hidden"]) @ w["out"] - batch["y"]) ** 2)


def train_step(w, batch):
    loss, grads = jax.value_and_grad(loss_fn)(w, batch)
    # Each device has the mean over its own examples:
    # the average is that over all of them.
    grads = jax.tree.map(lambda g: jax.lax.pmean(g, axis_name="batch"), grads)
    w = jax.tree.map(lambda p, g: p - 0.05 * g, w, grads)
    return w, {"loss": jax.lax.pmean(loss, "batch")}


def predict(w, batch):
    return jnp.tanh(batch["x"] @ w["hidden"]) @ w["out"]


def main():
    step = jax.pmap(train_step, axis_name="batch")
    predictions = jax.pmap(predict, axis_name="batch")
    w = {"hidden": 0.1 * jnp.arange(12.0).reshape(3, 4), "out": jnp.ones(4)}
    w = jax.device_put_replicated(w, jax.local_devices())
    history = collections.defaultdict(list)
    for batch in batches(4, 6):
        w, metrics = step(w, batch)
        for name, value in metrics.items():
            history[name].append(np.asarray(value).mean())
    print(*history["loss"])
    last = next(batches(1, 6))
    print(np.abs(np.asarray(predictions(w, last)) - last["y"]).sum())
    print(jax.tree.map(lambda x: float(jnp.sum(x[0])), w))


if __name__ == "__main__":
    main()
