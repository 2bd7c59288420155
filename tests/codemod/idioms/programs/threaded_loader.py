"""A dataset that is a thread with a queue; it stops when its examples end."""

import queue
import threading

import jax
import jax.numpy as jnp
import numpy as np


class Dataset(threading.Thread):
    """Loads batches ahead; a batch has a leading axis of devices."""

    def __init__(self, xs, ys, batch_size, epochs=1):
        super().__init__(daemon=True)
        self._queue = queue.Queue(2)
        self.xs, self.ys = xs, ys
        self.n_devices = jax.local_device_count()
        if batch_size % self.n_devices:
            raise ValueError("the batch must be divisible by the number of devices")
        self.batch_size, self.epochs = batch_size, epochs
        self.start()

    def run(self):
        rng = np.random.RandomState(0)
        for _ in range(self.epochs):
            order = rng.permutation(len(self.xs))
            # The last examples that make no full batch are dropped.
            for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
                self._queue.put(self._collate(order[start : start + self.batch_size]))
        self._queue.put(None)

    def _collate(self, indices):
        per_device = [self._examples(part) for part in np.split(indices, self.n_devices)]
        return jax.tree.map(lambda *parts: np.stack(parts), *per_device)

    def _examples(self, indices):
        return {"x": self.xs[indices], "y": self.ys[indices]}

    def peek(self):
        """The batch that comes next; its first example shows what a model takes."""
        while self._queue.empty():
            pass
        return self._queue.queue[0]

    def __iter__(self):
        return self

    def __next__(self):
        batch = self._queue.get()
        if batch is None:
            raise StopIteration
        return batch


def init(example):
    return {"w": jnp.full((example["x"].shape[-1],), 0.25), "b": jnp.zeros(())}


def train_step(params, batch):
    def loss_fn(params):
        return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    grads = jax.lax.pmean(grads, "batch")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), jax.lax.pmean(loss, "batch")


def main():
    rng = np.random.RandomState(1)
    xs = rng.normal(size=(100, 3)).astype(np.float32)
    ys = (xs @ np.array([1.0, -2.0, 0.5], np.float32)).astype(np.float32)
    dataset = Dataset(xs, ys, batch_size=32, epochs=4)
    example = jax.tree.map(lambda x: x[0, :1], dataset.peek())
    params = init(example)
    params = jax.tree.map(
        lambda x: jnp.tile(x[None], (jax.local_device_count(), *[1] * x.ndim)), params
    )
    p_train_step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0, 1))
    losses, seen = [], 0
    for batch in dataset:
        seen += batch["x"].shape[0] * batch["x"].shape[1]
        params, loss = p_train_step(params, batch)
        losses.append(loss[0].item())
        if losses[-1] < 0.1:
            break
    final = {name: np.asarray(value[0]) for name, value in params.items()}
    print(seen, "examples, losses", losses)
    return {"losses": losses, "seen": seen, "params": final}


if __name__ == "__main__":
    main()
