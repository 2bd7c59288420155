# jit: update
# The pmapped function has the name of the function that it maps.
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def update(params, x, y):
    def loss_fn(params):
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    grads = lax.pmean(grads, axis_name="dev")
    params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
    return params, lax.pmean(loss, axis_name="dev")


update = jax.pmap(update, axis_name="dev")


def main():
    n = jax.local_device_count()
    random = np.random.default_rng(0)
    params = {"w": np.zeros((4,), np.float32), "b": np.float32(0)}
    params = jax.device_put_replicated(params, jax.local_devices())
    for _ in range(4):
        x = random.normal(size=(n * 4, 4)).astype(np.float32)
        y = x.sum(-1) + 1
        params, loss = update(params, x.reshape(n, 4, 4), y.reshape(n, 4))
        print("loss", float(loss[0]))
    print("b", float(params["b"][0]))


if __name__ == "__main__":
    main()
