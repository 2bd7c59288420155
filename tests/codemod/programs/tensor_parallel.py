"""A two-layer block cut in the Megatron manner: columns, then rows, one sum at the end."""

import jax
import jax.numpy as jnp
import numpy as np

MODEL, HIDDEN = 6, 32


def copy_to_all(x):
    """Identity forward; the gradient of what every device used is the sum of theirs."""

    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, None), lambda _, g: (jax.lax.psum(g, "model"),))
    return f(x)


def sum_of_all(x):
    """Sum forward; every device has the whole gradient already."""

    @jax.custom_vjp
    def f(x):
        return jax.lax.psum(x, "model")

    f.defvjp(lambda x: (jax.lax.psum(x, "model"), None), lambda _, g: (g,))
    return f(x)


def block(params, x):
    hidden = jax.nn.gelu(copy_to_all(x) @ params["up"])
    return x + sum_of_all(hidden @ params["down"]) + params["bias"]


def loss_fn(params, x, y):
    return jnp.mean((block(block_params(params, 1), block(block_params(params, 0), x)) - y) ** 2)


def block_params(params, i):
    return {name: value[i] for name, value in params.items()}


def train_step(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


# up is cut by columns (axis 2), down by rows (axis 1), bias is everybody's and stacked.
PARAM_AXES = {"up": 2, "down": 1, "bias": 0}
parallel_step = jax.pmap(
    train_step, axis_name="model", in_axes=(PARAM_AXES, None, None), out_axes=(PARAM_AXES, None)
)


def cut(params, n):
    return {
        "up": params["up"].reshape(2, MODEL, n, HIDDEN // n),
        "down": params["down"].reshape(2, n, HIDDEN // n, MODEL),
        "bias": np.stack([params["bias"]] * n),
    }


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    params = {
        "up": rng.normal(size=(2, MODEL, HIDDEN)).astype(np.float32) / 3,
        "down": rng.normal(size=(2, HIDDEN, MODEL)).astype(np.float32) / 6,
        "bias": np.zeros((2, MODEL), np.float32),
    }
    x = rng.normal(size=(10, MODEL)).astype(np.float32)
    y = np.roll(x, 1, axis=1)
    sharded = cut(params, n)
    losses = []
    for _ in range(3):
        sharded, loss = parallel_step(sharded, x, y)
        losses.append(float(loss))
    up = np.asarray(sharded["up"]).reshape(2, MODEL, HIDDEN)
    assert np.ptp(np.asarray(sharded["bias"]), axis=0).max() < 1e-6
    print("losses", losses)
    return {"losses": losses, "up": up, "bias": np.asarray(sharded["bias"][0])}


if __name__ == "__main__":
    main()
