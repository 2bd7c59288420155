# jit: train_step
# bfloat16 with a loss scale that is kept in the state.
import jax
import jax.numpy as jnp
import numpy as np


def train_step(state, x, y):
    w, scale = state["w"], state["scale"]

    def loss_fn(w):
        out = x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)
        return jnp.mean((out.astype(jnp.float32) - y) ** 2) * scale

    loss, grads = jax.value_and_grad(loss_fn)(w)
    # Average over the devices, then unscale.
    grads = jax.lax.pmean(grads, axis_name="batch")
    grads = grads / scale
    is_finite = jnp.all(jnp.isfinite(grads))
    w = jnp.where(is_finite, w - 0.1 * grads, w)
    scale = jnp.where(is_finite, jnp.minimum(scale * 2, 1024.0), scale / 2)
    return {"w": w, "scale": scale}, jax.lax.pmean(loss / state["scale"], axis_name="batch")


step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    w = replicate({"w": rng.normal(size=(4,)).astype("float32"), "scale": np.float32(8)})
    for _ in range(3):
        x = rng.normal(size=(32, 4)).astype("float32")
        y = rng.normal(size=(32,)).astype("float32")
        w, loss = step(w, shard(x), shard(y))
        print("loss", float(loss[0]))
    print("w", np.asarray(w["w"][0]).tolist())


if __name__ == "__main__":
    main()
