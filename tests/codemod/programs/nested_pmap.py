"""Data and model parallel with a pmap in a pmap: 4 groups of 2 devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

DATA, MODEL = 4, 2


@functools.partial(jax.pmap, axis_name="data")
@functools.partial(jax.pmap, axis_name="model")
def train_step(w, x, y):
    """w: this device's rows of the weights; x: its features of its group's examples."""

    def loss_fn(w):
        partial = x @ w
        predicted = partial + jax.lax.stop_gradient(jax.lax.psum(partial, "model") - partial)
        return jnp.mean((predicted - y) ** 2)

    loss, grad = jax.value_and_grad(loss_fn)(w)
    grad = jax.lax.pmean(grad, "data")
    return w - 0.1 * grad, jax.lax.pmean(loss, ("data", "model"))


def spread(x):
    total = jax.lax.psum(x, "i")
    inner = jax.pmap(lambda t: t - jax.lax.pmean(t, "j") + jax.lax.axis_index("i"), axis_name="j")
    return inner(x) + total


def main():
    rng = np.random.RandomState(0)
    features = 6
    true = rng.normal(size=(features,)).astype(np.float32)
    w = np.zeros((DATA, MODEL, features // MODEL), np.float32)
    losses = []
    for _ in range(4):
        x = rng.normal(size=(DATA, 5, features)).astype(np.float32)
        y = np.stack([x @ true] * MODEL, axis=1)
        parts = x.reshape(DATA, 5, MODEL, features // MODEL).transpose(0, 2, 1, 3)
        w, loss = train_step(w, parts, y)
        losses.append(float(loss[0, 0]))
    print("losses", losses)
    rows = np.arange(DATA * MODEL, dtype=np.float32).reshape(DATA, MODEL)
    apart = jax.pmap(spread, axis_name="i")(rows)
    return {"losses": losses, "w": np.asarray(w), "apart": np.asarray(apart)}


if __name__ == "__main__":
    main()
