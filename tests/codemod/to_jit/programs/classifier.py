# jit: train_step, eval_step
import functools

import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(params, batch):
    x, y = batch["x"], batch["y"]
    h = jnp.tanh(x @ params["w1"] + params["b1"])
    logits = jax.nn.log_softmax(h @ params["w2"])
    return -jnp.take_along_axis(logits, y[:, None], axis=1).mean()


def train_step(params, velocity, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    grads = jax.lax.pmean(grads, axis_name="batch")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity)
    return params, velocity, jax.lax.pmean(loss, axis_name="batch")


p_train_step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0, 1))


@functools.partial(jax.pmap, axis_name="batch")
def eval_step(params, batch):
    loss = loss_fn(params, batch)
    # The sum over all examples, and how many there are.
    return jax.lax.psum(loss * len(batch["y"]), "batch"), jax.lax.psum(len(batch["y"]), "batch")


def shard(batch):
    n = jax.local_device_count()
    return jax.tree.map(lambda x: x.reshape((n, -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    params = {
        "w1": rng.normal(size=(8, 16)).astype("float32"),
        "b1": np.zeros(16, "float32"),
        "w2": rng.normal(size=(16, 4)).astype("float32"),
    }
    velocity = jax.tree.map(jnp.zeros_like, params)
    params, velocity = replicate(params), replicate(velocity)
    for step in range(5):
        batch = {
            "x": rng.normal(size=(32, 8)).astype("float32"),
            "y": rng.integers(0, 4, size=(32,)),
        }
        params, velocity, loss = p_train_step(params, velocity, shard(batch))
        print(step, float(loss[0]))
    total, count = eval_step(params, shard(batch))
    print("eval", float(total[0] / count[0]))


if __name__ == "__main__":
    main()
