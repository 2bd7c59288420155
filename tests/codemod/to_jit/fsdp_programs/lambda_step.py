# replicated: not defined by a def statement
# The state is returned by a lambda, which has no statement to constrain it in.
import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(w, x):
    return jnp.mean((x @ w) ** 2)


step = jax.pmap(
    lambda w, x: w - 0.1 * jax.lax.pmean(jax.grad(loss_fn)(w, x), "batch"), axis_name="batch"
)


def shard(batch):
    return batch.reshape((jax.local_device_count(), -1) + batch.shape[1:])


def main():
    rng = np.random.default_rng(0)
    w = jax.device_put_replicated(rng.normal(size=(16,)).astype("float32"), jax.local_devices())
    for _ in range(3):
        x = rng.normal(size=(32, 16)).astype("float32")
        w = step(w, shard(x))
        print("norm", float(jnp.linalg.norm(w[0])))
    return w


if __name__ == "__main__":
    main()
