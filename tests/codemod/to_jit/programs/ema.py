# jit: train_step
# An exponential moving average of the weights, and gradients that are clipped after the mean.
import jax
import jax.numpy as jnp
import numpy as np


def train_step(state, x, y):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(state["w"])
    grads, loss = jax.lax.pmean((grads, loss), "batch")
    norm = jnp.sqrt(jnp.sum(grads**2))
    grads = grads * jnp.minimum(1.0, 1.0 / (norm + 1e-6))
    w = state["w"] - 0.1 * grads
    return {"w": w, "ema": 0.9 * state["ema"] + 0.1 * w}, loss


step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    w = replicate({"w": rng.normal(size=(4,)).astype("float32"), "ema": np.zeros(4, "float32")})
    for _ in range(3):
        x = rng.normal(size=(32, 4)).astype("float32")
        y = rng.normal(size=(32,)).astype("float32")
        w, loss = step(w, shard(x), shard(y))
        print("loss", float(loss[0]))
    print("w", np.asarray(w["ema"][0]).tolist())


if __name__ == "__main__":
    main()
