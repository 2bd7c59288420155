# replicated: no array of it has a dimension that the number of devices divides
import jax
import jax.numpy as jnp
import numpy as np


def train_step(w, x):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.1 * jax.lax.pmean(grads, "batch"), jax.lax.pmean(loss, "batch")


step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)


def shard(batch):
    return batch.reshape((jax.local_device_count(), -1) + batch.shape[1:])


def main():
    rng = np.random.default_rng(0)
    w = jax.device_put_replicated(rng.normal(size=(5, 3)).astype("float32"), jax.local_devices())
    for _ in range(3):
        x = rng.normal(size=(32, 5)).astype("float32")
        w, loss = step(w, shard(x))
        print("loss", float(loss[0]))
    return w


if __name__ == "__main__":
    main()
