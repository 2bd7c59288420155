"""Statistics of a table whose parts are mapped along different axes, and come back along others."""

import jax
import jax.numpy as jnp
import numpy as np

AXIS = "shard"


def moments(table, weights, options):
    """Weighted mean and covariance of all rows; scores of this shard's own rows."""
    x = table["values"]
    w = jnp.where(table["valid"], weights, 0.0)
    total = jax.lax.psum(w.sum(), AXIS)
    mean = jax.lax.psum(w @ x, AXIS) / total
    centred = x - mean
    cov = jax.lax.psum((w[:, None] * centred).T @ centred, AXIS) / total
    cov = cov + options["ridge"] * jnp.eye(x.shape[1])
    scores = jnp.einsum("ni,ij,nj->n", centred, jnp.linalg.inv(cov), centred)
    low, high = jax.lax.pmin(scores.min(), AXIS), jax.lax.pmax(scores.max(), AXIS)
    return {"mean": mean, "cov": cov}, (scores, centred), (low, high)


mapped = jax.pmap(
    moments,
    axis_name=AXIS,
    # values are (rows, devices, features), valid (rows, devices), weights (devices, rows).
    in_axes=({"values": 1, "valid": 1}, 0, None),
    out_axes=(None, (1, 2), (None, None)),
)


def histogram(scores, edges):
    counts = jnp.sum((scores[:, None] >= edges[:-1]) & (scores[:, None] < edges[1:]), axis=0)
    return jax.lax.psum(counts, AXIS), counts


p_histogram = jax.pmap(histogram, AXIS, in_axes=(1, None), out_axes=(None, 0))


def main():
    n, rows, features = jax.local_device_count(), 7, 3
    rng = np.random.RandomState(4)
    table = {
        "values": rng.normal(size=(rows, n, features)).astype(np.float32),
        "valid": rng.uniform(size=(rows, n)) > 0.1,
    }
    weights = rng.uniform(0.5, 1.5, size=(n, rows)).astype(np.float32)
    fit, (scores, centred), (low, high) = mapped(table, weights, {"ridge": np.float32(1e-3)})
    assert fit["cov"].shape == (features, features)
    assert scores.shape == (rows, n)
    assert centred.shape == (rows, features, n)
    edges = np.linspace(0, float(high) + 1e-3, 5, dtype=np.float32)
    counts, by_shard = p_histogram(scores, edges)
    assert int(counts.sum()) == rows * n
    assert np.array_equal(np.asarray(by_shard).sum(0), counts)
    print("scores from", float(low), "to", float(high), "counts", np.asarray(counts))
    result = {"fit": fit, "scores": scores, "centred": centred, "counts": counts, "low": low}
    return jax.tree.map(np.asarray, result)


if __name__ == "__main__":
    main()
