# shard_map: train_step: while
# Each device iterates until its own examples have converged.
import jax
import jax.numpy as jnp
import numpy as np


def train_step(w, x, y):
    def is_far(carry):
        step, w = carry
        return (step < 5) & (jnp.mean((x @ w - y) ** 2) > 0.5)

    def descend(carry):
        step, w = carry
        return step + 1, w - 0.05 * jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)

    _, local = jax.lax.while_loop(is_far, descend, (0, w))
    w = jax.lax.pmean(local, "batch")
    return w, jax.lax.pmean(jnp.mean((x @ w - y) ** 2), "batch")


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
