# jit: train_step
# Batch norm with statistics over all devices.
import jax
import jax.numpy as jnp
import numpy as np


def batch_norm(x):
    mean = jax.lax.pmean(jnp.mean(x, axis=0), "batch")
    mean_of_squares = jax.lax.pmean(jnp.mean(x**2, axis=0), "batch")
    return (x - mean) / jnp.sqrt(mean_of_squares - mean**2 + 1e-5)


def train_step(w, x, y):
    def loss_fn(w):
        return jnp.mean((batch_norm(x * w) @ w - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(w)
    grads = jax.lax.pmean(grads, "batch")
    return w - 0.1 * grads, jax.lax.pmean(loss, "batch")


step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)


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
