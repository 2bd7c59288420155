# replicated: no array of it has 1,024 elements or more and a dimension that the number of
import jax
import jax.numpy as jnp
import numpy as np


def train_step(w, x):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.01 * jax.lax.pmean(grads, "batch"), jax.lax.pmean(loss, "batch")


step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)


def shard(batch):
    return batch.reshape((jax.local_device_count(), -1) + batch.shape[1:])


def main():
    rng = np.random.default_rng(0)
    w = jax.device_put_replicated(rng.normal(size=(45, 30)).astype("float32"), jax.local_devices())
    for _ in range(3):
        x = rng.normal(size=(32, 45)).astype("float32")
        w, loss = step(w, shard(x))
        print("loss", float(loss[0]))
    return w


if __name__ == "__main__":
    main()
