# jit: train_step
# A mean over the examples that count, of all devices.
import jax
import jax.numpy as jnp
import numpy as np


def train_step(w, x, y):
    mask = (y > 0).astype(jnp.float32)

    def loss_fn(w):
        return jnp.sum(mask * (x @ w - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(w)
    count = jnp.maximum(jax.lax.psum(jnp.sum(mask), "batch"), 1.0)
    grads = jax.lax.psum(grads, "batch") / count
    return w - 0.1 * grads, jax.lax.psum(loss, "batch") / count


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
