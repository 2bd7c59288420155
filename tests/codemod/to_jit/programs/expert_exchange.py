# shard_map: train_step: all_to_all
# Examples go to the device of their expert and back.
import jax
import jax.numpy as jnp
import numpy as np


def train_step(w, x, y):
    def loss_fn(w):
        sent = jax.lax.all_to_all(x.reshape(jax.device_count(), -1, x.shape[-1]), "batch", 0, 0)
        out = jax.lax.all_to_all(jnp.cumsum(sent, axis=0) * w, "batch", 0, 0)
        return jnp.mean((out.reshape(x.shape).sum(-1) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(w)
    grads = jax.lax.pmean(grads, "batch")
    return w - 0.001 * grads, jax.lax.pmean(loss, "batch")


step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    w = replicate(rng.normal(size=(4,)).astype("float32"))
    for _ in range(3):
        x = rng.normal(size=(64, 4)).astype("float32")
        y = rng.normal(size=(64,)).astype("float32")
        w, loss = step(w, shard(x), shard(y))
        print("loss", float(loss[0]))
    print("w", np.asarray(w[0]).tolist())


if __name__ == "__main__":
    main()
