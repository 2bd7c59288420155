# shard_map: train_step: the body takes argument 0 `w` and argument 1 `x` with a device axis
# Each device starts with other weights, and keeps its own.
import jax
import jax.numpy as jnp
import numpy as np


def train_step(w, x):
    assert w.shape == (3, 2)
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.1 * grads, loss


def main():
    random = np.random.default_rng(0)
    step = jax.pmap(train_step, axis_name="batch")
    w = random.normal(size=(jax.device_count(), 3, 2)).astype("float32")
    for _ in range(2):
        w, loss = step(w, random.normal(size=(jax.device_count(), 4, 3)).astype("float32"))
        print(*np.asarray(loss))


if __name__ == "__main__":
    main()
