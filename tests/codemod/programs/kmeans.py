"""k-means with points over devices, iterated on the devices until the centres rest."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def assign(points, centres):
    distance = jnp.sum((points[:, None] - centres[None]) ** 2, axis=-1)
    return jnp.argmin(distance, axis=-1), jnp.min(distance, axis=-1)


def fit(points, centres, tolerance):
    k = centres.shape[0]

    def update(carry):
        centres, _, n_iter = carry
        labels, _ = assign(points, centres)
        one_hot = jax.nn.one_hot(labels, k)
        sums, counts = jax.lax.psum((one_hot.T @ points, one_hot.sum(0)), "points")
        new = jnp.where(counts[:, None] > 0, sums / jnp.maximum(counts, 1)[:, None], centres)
        return new, jnp.max(jnp.abs(new - centres)), n_iter + 1

    def moving(carry):
        return (carry[1] > tolerance) & (carry[2] < 20)

    centres, _, n_iter = jax.lax.while_loop(moving, update, (centres, jnp.inf, 0))
    labels, distance = assign(points, centres)
    inertia = jax.lax.psum(distance.sum(), "points")
    return centres, labels, inertia, n_iter


distributed_fit = jax.pmap(
    fit,
    axis_name="points",
    in_axes=(0, None, None),
    # Only the labels differ between devices.
    out_axes=(None, 0, None, None),
)


def restarts(points, keys, k):
    flat = points.reshape(-1, points.shape[-1])
    for key in keys:
        start = jax.random.choice(key, flat, (k,), replace=False)
        yield distributed_fit(points, start, 1e-4)


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    true = np.array([[0, 0], [5, 5], [-5, 5]], np.float32)
    points = true[rng.randint(3, size=(n, 12))] + rng.normal(size=(n, 12, 2))
    points = points.astype(np.float32)
    runs = list(restarts(points, jax.random.split(jax.random.PRNGKey(0), 2), k=3))
    best = min(runs, key=lambda run: float(run[2]))
    centres, labels, inertia, n_iter = jax.device_get(best)
    print(f"inertia {inertia:.3f} after {n_iter} iterations")
    inertias = functools.reduce(lambda a, run: [*a, float(run[2])], runs, [])
    return {"centres": centres, "labels": labels, "inertias": inertias, "n_iter": n_iter}


if __name__ == "__main__":
    main()
