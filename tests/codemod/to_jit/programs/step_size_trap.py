# jit: train_step
# psum of gradients of a mean: without it, each step is n times smaller.
import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def train_step(w, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(w, x, y)
    grads = jax.lax.psum(grads, "batch")
    return w - 0.01 * grads, jax.lax.pmean(loss, "batch")


step = jax.pmap(train_step, axis_name="batch")


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    w = replicate(rng.normal(size=(4,)).astype("float32"))
    for _ in range(3):
        x = rng.normal(size=(32, 4)).astype("float32")
        y = rng.normal(size=(32,)).astype("float32")
        w, loss = step(w, shard(x), shard(y))
        print("loss", float(loss[0]))
    print("w", np.asarray(w[0]).tolist())


if __name__ == "__main__":
    main()
