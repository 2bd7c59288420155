"""Power iteration on a matrix cut by rows, then by columns: gather, scatter, inner axes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import all_gather, pmean, psum, psum_scatter


def power_by_rows(a, v):
    """a: this device's rows; v: this device's part of the vector."""
    whole = all_gather(v, "i", tiled=True)
    w = a @ whole
    norm = jnp.sqrt(psum(jnp.vdot(w, w), "i"))
    return w / norm, norm


def power_by_columns(a, v):
    """a: this device's columns; what it adds to every row is summed and scattered."""
    w = psum_scatter(a @ v, "i", scatter_dimension=0, tiled=True)
    norm = jnp.sqrt(psum(jnp.vdot(w, w), "i"))
    return w / norm, norm


def column_blocks(a, b):
    """a is whole, b in columns; the result comes back in columns."""
    return a @ b, pmean(jnp.abs(b).max(), "i")


rows = jax.pmap(power_by_rows, axis_name="i")
columns = jax.pmap(power_by_columns, axis_name="i", in_axes=(1, 0), out_axes=0)
blocks = jax.pmap(column_blocks, axis_name="i", in_axes=(None, 2), out_axes=(1, None))


def main():
    n = jax.local_device_count()
    size = 2 * n
    rng = np.random.RandomState(0)
    m = rng.normal(size=(size, size)).astype(np.float32)
    a = m @ m.T / size
    v = np.ones((n, 2), np.float32) / np.sqrt(size)

    v_rows, v_columns = v, v
    norms = []
    for _ in range(5):
        v_rows, by_rows = rows(a.reshape(n, 2, size), v_rows)
        v_columns, by_columns = columns(a.reshape(size, n, 2), v_columns)
        norms.append((by_rows[0], by_columns[0]))
    assert np.allclose(v_rows, v_columns, atol=1e-5)

    b = rng.normal(size=(size, 3, n)).astype(np.float32)
    product, biggest = blocks(a, b)
    assert product.shape == (size, n, 3)
    assert np.allclose(
        np.asarray(product).transpose(0, 2, 1), np.einsum("ij,jkn->ikn", a, b), atol=1e-4
    )
    print("largest eigenvalue", float(norms[-1][0]), float(norms[-1][1]), "blocks", product.shape)
    return {
        "vector": np.asarray(v_rows),
        "norms": np.asarray(norms),
        "product": np.asarray(product),
        "biggest": np.asarray(biggest),
    }


if __name__ == "__main__":
    main()
