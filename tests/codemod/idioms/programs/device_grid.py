"""A grid of devices by a map in a map; the inner function closes over values of the outer."""

import jax
import jax.numpy as jnp
import numpy as np

ROWS, COLUMNS = 4, 2


def loss_fn(w, x, y):
    return jnp.mean((jnp.tanh(x @ w) - y) ** 2)


def train_step(w, x, y, key):
    """Runs on a row of the grid; the key is that of the row."""
    shift = 0.01 * jax.lax.axis_index("row")
    noise = 0.1 * jax.random.normal(key, w.shape)

    def on_a_device(x, y):
        column = jax.lax.axis_index("column")
        loss, grad = jax.value_and_grad(loss_fn)(w + noise, x, y + shift * column)
        grad = jax.lax.pmean(jax.lax.pmean(grad, "column"), "row")
        return w - 0.5 * grad, loss

    return jax.pmap(on_a_device, axis_name="column")(x, y)


p_train_step = jax.pmap(train_step, axis_name="row")


def row_totals(x):
    inner = jax.pmap(lambda v: jax.lax.psum(v, "column"), axis_name="column")
    return inner(x)[0]


def main():
    rng = np.random.RandomState(0)
    w = np.linspace(-1, 1, 6, dtype=np.float32)
    w = np.broadcast_to(w, (ROWS,) + w.shape)
    keys = jax.random.split(jax.random.PRNGKey(0), ROWS)
    history = []
    for _ in range(3):
        x = rng.normal(size=(ROWS * COLUMNS * 4, 6)).astype(np.float32)
        y = np.sign(x[:, 0])
        x, y = (v.reshape((ROWS, COLUMNS, -1) + v.shape[1:]) for v in (x, y))
        w, loss = p_train_step(w, x, y, keys)
        w = w[:, 0]
        history.append(np.asarray(loss))
    totals = jax.pmap(row_totals)(history[-1])
    print("losses", [float(loss.mean()) for loss in history])
    return {"losses": np.stack(history), "w": np.asarray(w[0]), "totals": np.asarray(totals)}


if __name__ == "__main__":
    main()
