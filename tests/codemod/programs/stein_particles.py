"""Stein variational gradient descent: particles on all devices repel each other."""

import jax
import jax.numpy as jnp
import numpy as np


def log_density(x):
    a = -0.5 * jnp.sum((x - 2.0) ** 2)
    b = -0.5 * jnp.sum((x + 2.0) ** 2)
    return jnp.logaddexp(a, b)


def kernel(x, y, bandwidth):
    return jnp.exp(-jnp.sum((x - y) ** 2) / bandwidth)


def stein_direction(mine, everyone, bandwidth):
    scores = jax.vmap(jax.grad(log_density))(everyone)

    def one(x):
        k = jax.vmap(kernel, in_axes=(0, None, None))(everyone, x, bandwidth)
        dk = jax.vmap(jax.grad(kernel), in_axes=(0, None, None))(everyone, x, bandwidth)
        return (k @ scores + dk.sum(0)) / everyone.shape[0]

    return jax.vmap(one)(mine)


def transport(particles, n_steps, step_size=0.3):
    def body(particles, _):
        everyone = jax.lax.all_gather(particles, "p", tiled=True)
        centre = jax.lax.pmean(particles.mean(0), "p")
        bandwidth = jax.lax.pmean(jnp.mean((particles - centre) ** 2), "p") + 1e-3
        direction = stein_direction(particles, everyone, bandwidth)
        return particles + step_size * direction, jnp.linalg.norm(direction)

    return jax.lax.scan(body, particles, None, length=n_steps)


def main():
    n = jax.local_device_count()
    particles = jax.random.normal(jax.random.PRNGKey(0), (n, 4, 2))
    moved, norms = jax.pmap(transport, axis_name="p", static_broadcasted_argnums=(1,))(
        particles, 15
    )
    again, _ = jax.pmap(transport, axis_name="p", static_broadcasted_argnums=(1,))(moved, 2)
    flat = np.asarray(moved).reshape(-1, 2)
    share = float((flat.sum(-1) > 0).mean())
    print(f"share in the right mode {share:.3f}, spread {flat.std():.4f}")
    return {"moved": flat, "norms": np.asarray(norms), "again": np.asarray(again)}


if __name__ == "__main__":
    main()
