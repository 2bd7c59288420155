# shard_map: train_step: the run does not reach
# A collective in a branch that the command does not take.
import jax
import jax.numpy as jnp
import numpy as np

CLIP = False


def train_step(w, x):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    grads = jax.lax.pmean(grads, "batch")
    if CLIP:
        norm = jax.lax.pmax(jnp.sqrt(jnp.sum(grads**2)), "batch")
        grads = grads / jnp.maximum(norm, 1.0)
    return w - 0.1 * grads, jax.lax.pmean(loss, "batch")


p_train_step = jax.pmap(train_step, axis_name="batch")


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    w = replicate(rng.normal(size=(4,)).astype("float32"))
    for _ in range(3):
        w, loss = p_train_step(w, shard(rng.normal(size=(32, 4)).astype("float32")))
        print("loss", float(loss[0]))


if __name__ == "__main__":
    main()
