"""An input pipeline that keeps a few batches on the devices ahead of the loop."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np


def load(seed, shuffle=True):
    rng = np.random.RandomState(seed)
    inputs = np.linspace(-2, 2, 64, dtype=np.float32)[:, None]
    order = rng.permutation(64) if shuffle else np.arange(64)
    while True:
        for start in range(0, 64, 16):
            x = inputs[order[start : start + 16]]
            yield {"x": x, "y": np.sin(2 * x)}


def to_devices(batch, devices):
    """Puts every device's slice straight to it."""
    n = len(devices)
    leaves, treedef = jax.tree_util.tree_flatten(batch)
    cut = [np.split(leaf, n) for leaf in leaves]
    return treedef.unflatten([jax.device_put_sharded(parts, devices) for parts in cut])


def prefetch(iterator, size, devices=None):
    devices = devices or jax.local_devices()
    queue = collections.deque()

    def enqueue(n):
        for data in itertools.islice(iterator, n):
            queue.append(to_devices(data, devices))

    enqueue(size)
    while queue:
        yield queue.popleft()
        enqueue(1)


def features(x):
    return jnp.concatenate([x**k for k in range(4)], axis=-1)


def update(w, batch):
    def loss_fn(w):
        return jnp.mean((features(batch["x"]) @ w - batch["y"]) ** 2)

    loss, grad = jax.value_and_grad(loss_fn)(w)
    return w - 0.01 * jax.lax.pmean(grad, "d"), jax.lax.pmean(loss, "d")


def main():
    p_update = jax.pmap(update, axis_name="d", donate_argnums=(0,))
    w = jax.device_put_replicated(np.zeros((4, 1), np.float32), jax.local_devices())
    losses = []
    for batch in itertools.islice(prefetch(load(0), size=2), 6):
        assert batch["x"].shape == (jax.local_device_count(), 2, 1)
        w, loss = p_update(w, batch)
        losses.append(loss)
    losses = [float(loss[0]) for loss in losses]
    print("losses", losses)
    return {"losses": losses, "w": np.asarray(w[0])}


if __name__ == "__main__":
    main()
