# shard_map: train_step: is also used at
# shard_map: noisy_step: axis_index
# Both steps average by one function, and one of them depends on the device.
import jax
import jax.numpy as jnp
import numpy as np


def mean_over_devices(tree):
    return jax.lax.pmean(tree, axis_name="batch")


def train_step(w, x):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    loss, grads = mean_over_devices((loss, grads))
    return w - 0.1 * grads, loss


def noisy_step(w, x):
    noise = jax.random.normal(jax.random.key(jax.lax.axis_index("batch")), x.shape)
    loss, grads = jax.value_and_grad(lambda w: jnp.mean(((x + noise) @ w) ** 2))(w)
    loss, grads = mean_over_devices((loss, grads))
    return w - 0.1 * grads, loss


p_train_step = jax.pmap(train_step, axis_name="batch")
p_noisy_step = jax.pmap(noisy_step, axis_name="batch")


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    w = replicate(rng.normal(size=(4,)).astype("float32"))
    for _ in range(3):
        x = shard(rng.normal(size=(32, 4)).astype("float32"))
        w, loss = p_train_step(w, x)
        w, noisy = p_noisy_step(w, x)
        print("loss", float(loss[0]), float(noisy[0]))


if __name__ == "__main__":
    main()
