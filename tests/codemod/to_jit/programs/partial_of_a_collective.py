# shard_map: train_step: is not a direct call with an operand
# The collective is given to a function of JAX, which calls it.
import functools

import jax
import jax.numpy as jnp
import numpy as np

mean_over_devices = functools.partial(jax.lax.pmean, axis_name="batch")


def train_step(w, x):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    grads = jax.tree.map(mean_over_devices, grads)
    return w - 0.1 * grads, mean_over_devices(loss)


p_train_step = jax.pmap(train_step, axis_name="batch")


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def main():
    rng = np.random.default_rng(0)
    w = jax.device_put_replicated(rng.normal(size=(4,)).astype("float32"), jax.local_devices())
    for _ in range(3):
        w, loss = p_train_step(w, shard(rng.normal(size=(32, 4)).astype("float32")))
        print("loss", float(loss[0]))


if __name__ == "__main__":
    main()
