# shard_map: train_step: argument 2
# Dropout with a key for each device.
import jax
import jax.numpy as jnp
import numpy as np


def train_step(w, x, key):
    x = x * jax.random.bernoulli(key, 0.5, x.shape)
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
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
    key = jax.random.PRNGKey(0)
    for _ in range(3):
        key, own = jax.random.split(key)
        keys = jax.random.split(own, jax.device_count())
        w, loss = step(w, shard(rng.normal(size=(32, 4)).astype("float32")), keys)
        print("loss", float(loss[0]))
    print("w", np.asarray(w[0]).tolist())


if __name__ == "__main__":
    main()
