"""Regression with a two-layer network, the data split over the devices by hand."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LEARNING_RATE = 0.05
STEPS = 6


def init_params(key, sizes=(3, 16, 1)):
    params = []
    for n_in, n_out in itertools.pairwise(sizes):
        key, sub = jax.random.split(key)
        params.append(
            {"w": jax.random.normal(sub, (n_in, n_out)) / np.sqrt(n_in), "b": jnp.zeros(n_out)}
        )
    return params


def predict(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def mse(params, x, y):
    return jnp.mean((predict(params, x) - y) ** 2)


@functools.partial(jax.pmap, axis_name="num_devices")
def update(params, x, y):
    loss, grads = jax.value_and_grad(mse)(params, x, y)
    grads = lax.pmean(grads, axis_name="num_devices")
    loss = lax.pmean(loss, axis_name="num_devices")
    new_params = jax.tree_util.tree_map(lambda p, g: p - LEARNING_RATE * g, params, grads)
    return new_params, loss


def split(arr):
    """Gives each device its part of the first axis."""
    n = jax.local_device_count()
    return arr.reshape(n, arr.shape[0] // n, *arr.shape[1:])


def main():
    rng = np.random.RandomState(0)
    xs = rng.normal(size=(128, 3)).astype(np.float32)
    ys = np.sin(xs.sum(axis=1, keepdims=True)) + 0.1 * rng.normal(size=(128, 1)).astype(np.float32)

    params = init_params(jax.random.PRNGKey(0))
    n_devices = jax.local_device_count()
    replicated = jax.tree_util.tree_map(lambda x: jnp.array([x] * n_devices), params)

    x_split, y_split = split(xs), split(ys.astype(np.float32))
    losses = []
    for step in range(STEPS):
        replicated, loss = update(replicated, x_split, y_split)
        # The loss is the same on all devices: any row will do.
        losses.append(loss[0].item())
        print(f"step {step:3d}, loss: {losses[-1]:.4f}")

    params = jax.device_get(jax.tree_util.tree_map(lambda x: x[0], replicated))
    return {"losses": np.array(losses), "params": params, "fit": np.asarray(predict(params, xs))}


if __name__ == "__main__":
    main()
