"""A dataset that is a thread with a queue; it stops when its examples end."""

import queue
import threading

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


class Dataset(threading.Thread):
    """Loads batches ahead."""

    def __init__(self, xs, ys, batch_size, epochs=1):
        super().__init__(daemon=True)
        self._queue = queue.Queue(2)
        self.xs, self.ys = xs, ys
        if batch_size % jax.device_count():
            raise ValueError("the batch must be divisible by the number of devices")
        self.batch_size, self.epochs = batch_size, epochs
        self.start()

    def run(self):
        rng = np.random.RandomState(0)
        for _ in range(self.epochs):
            order = rng.permutation(len(self.xs))
            # The last examples that make no full batch are dropped.
            for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
                self._queue.put(self._examples(order[start : start + self.batch_size]))
        self._queue.put(None)

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
    example = jax.tree.map(lambda x: x[:1], dataset.peek())
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    params = jax.device_put(init(example), NamedSharding(mesh, P()))
    p_train_step = jax.jit(
        jax.shard_map(
            train_step,
            mesh=mesh,
            in_specs=(P(), P("batch")),
            out_specs=P(),
            check_vma=False,
        ),
        donate_argnums=(0, 1),
    )
    losses, seen = [], 0
    for batch in dataset:
        seen += batch["x"].shape[0]
        params, loss = p_train_step(params, batch)
        losses.append(loss.item())
        if losses[-1] < 0.1:
            break
    final = {name: np.asarray(value) for name, value in params.items()}
    print(seen, "examples, losses", losses)
    return {"losses": losses, "seen": seen, "params": final}


if __name__ == "__main__":
    main()
