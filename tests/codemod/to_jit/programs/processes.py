# jit: train_step
# command: -m pmapx run -n 2 --devices 4 train.py
# Two processes, each with its own shard of the batch.
import jax
import jax.numpy as jnp
import numpy as np


def train_step(w, x, y):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    grads = jax.lax.pmean(grads, "batch")
    return w - 0.1 * grads, jax.lax.pmean(loss, "batch")


step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)


def shard(batch):
    return batch.reshape((jax.local_device_count(), -1) + batch.shape[1:])


def main():
    jax.distributed.initialize()
    rng = np.random.default_rng(jax.process_index())
    w = np.ones(4, "float32")
    w = jax.device_put_replicated(w, jax.local_devices())
    for _ in range(3):
        x = rng.normal(size=(16, 4)).astype("float32")
        y = rng.normal(size=(16,)).astype("float32")
        w, loss = step(w, shard(x), shard(y))
        print("loss", float(loss[0]))
    print("w", np.asarray(w[0]).tolist())


if __name__ == "__main__":
    main()
