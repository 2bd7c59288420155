"""A grid of devices: a mesh of two axes, keys by row and losses by device."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

ROWS, COLUMNS = 4, 2


def loss_fn(w, x, y):
    return jnp.mean((jnp.tanh(x @ w) - y) ** 2)


def train_step(w, x, y, key):
    """Runs on a device of the grid; the key is that of its row."""
    shift = 0.01 * jax.lax.axis_index("row")
    noise = 0.1 * jax.random.normal(key[0], w.shape)

    column = jax.lax.axis_index("column")
    loss, grad = jax.value_and_grad(loss_fn)(w + noise, x, y + shift * column)
    grad = jax.lax.pmean(jax.lax.pmean(grad, "column"), "row")
    return w - 0.5 * grad, loss[None, None]


def row_totals(x):
    return jax.lax.psum(x[0], "column")


def main():
    mesh = jax.make_mesh((ROWS, COLUMNS), ("row", "column"), axis_types=(AxisType.Auto,) * 2)
    p_train_step = jax.jit(
        jax.shard_map(
            train_step,
            mesh=mesh,
            in_specs=(P(), P(("row", "column")), P(("row", "column")), P("row")),
            out_specs=(P(), P("row", "column")),
            check_vma=False,
        )
    )
    rng = np.random.RandomState(0)
    w = np.linspace(-1, 1, 6, dtype=np.float32)
    w = jax.device_put(w, NamedSharding(mesh, P()))
    keys = jax.random.split(jax.random.PRNGKey(0), ROWS)
    history = []
    for _ in range(3):
        x = rng.normal(size=(ROWS * COLUMNS * 4, 6)).astype(np.float32)
        y = np.sign(x[:, 0])
        w, loss = p_train_step(w, x, y, keys)
        history.append(np.asarray(loss))
    totals = jax.jit(
        jax.shard_map(
            row_totals,
            mesh=mesh,
            in_specs=P("row", "column"),
            out_specs=P("row"),
            check_vma=False,
        )
    )(history[-1])
    print("losses", [float(loss.mean()) for loss in history])
    return {"losses": np.stack(history), "w": np.asarray(w), "totals": np.asarray(totals)}


if __name__ == "__main__":
    main()
