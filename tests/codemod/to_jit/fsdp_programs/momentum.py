# fsdp: params, velocity
# Plain dicts, placed by one function; what is evaluated takes sharded parameters too.
import functools

import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(params, batch):
    h = jnp.tanh(batch["x"] @ params["w1"] + params["b1"])
    return jnp.mean((h @ params["w2"] - batch["y"]) ** 2)


def train_step(params, velocity, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    grads = jax.lax.pmean(grads, axis_name="batch")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity)
    return params, velocity, jax.lax.pmean(loss, axis_name="batch")


p_train_step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0, 1))


@functools.partial(jax.pmap, axis_name="batch")
def eval_step(params, batch):
    return jax.lax.pmean(loss_fn(params, batch), "batch")


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.local_device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape).astype("float32")
    params = {"w1": normal(64, 16) / 8, "b1": np.zeros(16, "float32"), "w2": normal(16, 3)}
    velocity = jax.tree.map(np.zeros_like, params)
    params, velocity = replicate(params), replicate(velocity)
    for _ in range(3):
        batch = {"x": normal(32, 64), "y": normal(32, 3)}
        params, velocity, loss = p_train_step(params, velocity, shard(batch))
        print("loss", float(loss[0]))
    print("eval", float(eval_step(params, shard(batch))[0]))
    print("b1", np.asarray(params["b1"][0]).tolist())
    return params, velocity


if __name__ == "__main__":
    main()
