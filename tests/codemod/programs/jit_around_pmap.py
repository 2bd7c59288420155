"""pmap inside other transformations: under jit, in a loop, differentiated from outside."""

import jax
import jax.numpy as jnp
import numpy as np


def energy(x, k):
    """Springs between neighbours on a ring of devices."""
    n = jax.lax.psum(1, "ring")
    neighbour = jax.lax.ppermute(x, "ring", [(i, (i + 1) % n) for i in range(n)])
    return 0.5 * k * jnp.sum((x - neighbour) ** 2)


ring_energy = jax.pmap(energy, axis_name="ring", in_axes=(0, None))


def total_energy(x, k):
    return ring_energy(x, k).sum()


@jax.jit
def relax(x, k):
    """Steepest descent with the gradient taken through the map."""
    return x - 0.2 * jax.grad(total_energy)(x, k)


mapped_mean = jax.pmap(lambda x: jax.lax.pmean(x, "i"), axis_name="i")


@jax.jit
def centred(x):
    return x - mapped_mean(x)


def main():
    n = jax.local_device_count()
    x = np.random.RandomState(0).normal(size=(n, 3)).astype(np.float32)
    energies = [float(total_energy(x, 1.0))]
    for _ in range(3):
        x = relax(x, 1.0)
        energies.append(float(total_energy(x, 1.0)))
    stiffness = jax.grad(total_energy, argnums=1)(x, 1.0)
    out = centred(x)
    assert np.allclose(np.asarray(out).mean(0), 0, atol=1e-6)
    shape = jax.eval_shape(ring_energy, x, 1.0).shape
    print("energies", energies)
    return {
        "energies": energies,
        "x": np.asarray(x),
        "stiffness": np.asarray(stiffness),
        "centred": np.asarray(out),
        "shape": np.array(shape),
    }


if __name__ == "__main__":
    main()
