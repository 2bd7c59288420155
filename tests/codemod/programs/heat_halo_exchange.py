"""The heat equation on a rod that is cut over the devices; edges are sent to the neighbours."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CELLS, STEPS, RATE = 16, 25, 0.25


def exchange(u, n):
    """Returns each neighbour's nearest cell; beyond the ends of the rod it is zero."""
    left = lax.ppermute(u[-1:], "x", [(i, i + 1) for i in range(n - 1)])
    right = lax.ppermute(u[:1], "x", [(i + 1, i) for i in range(n - 1)])
    return left, right


def simulate(u, source, n_devices):
    def step(u, _):
        left, right = exchange(u, n_devices)
        padded = jnp.concatenate([left, u, right])
        u = u + RATE * (padded[:-2] - 2 * u + padded[2:]) + source
        return u, lax.psum(u.sum(), "x")

    return lax.scan(step, u, None, length=STEPS)


def reference(u, source):
    totals = []
    for _ in range(STEPS):
        padded = np.concatenate([[0], u, [0]]).astype(np.float32)
        u = u + np.float32(RATE) * (padded[:-2] - 2 * u + padded[2:]) + source
        totals.append(u.sum())
    return u, np.array(totals)


def main():
    n = jax.device_count()
    rod = np.zeros(n * CELLS, np.float32)
    rod[n * CELLS // 3] = 10.0
    source = np.zeros_like(rod)
    source[-5] = 0.1

    run = jax.pmap(simulate, axis_name="x", static_broadcasted_argnums=2)
    u, totals = run(rod.reshape(n, CELLS), source.reshape(n, CELLS), n)
    u = np.asarray(u).reshape(-1)
    expected, expected_totals = reference(rod, source)
    assert np.allclose(u, expected, atol=1e-5)
    assert np.allclose(totals[0], expected_totals, rtol=1e-4)
    print(f"warmest {u.max():.4f} at {u.argmax()}, heat {float(totals[0, -1]):.4f}")
    return {"u": u, "totals": np.asarray(totals)}


if __name__ == "__main__":
    main()
