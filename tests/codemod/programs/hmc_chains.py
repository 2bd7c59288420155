"""Hamiltonian Monte Carlo: a few chains on each device, no word between devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

DIM = 2
CHAINS_PER_DEVICE = 3


def log_prob(x):
    """A banana."""
    a, b = x
    return -0.5 * (a**2 + (b - a**2) ** 2 / 0.5)


def leapfrog(x, p, step_size, n_steps):
    grad = jax.grad(log_prob)

    def one(_, state):
        x, p = state
        p = p + 0.5 * step_size * grad(x)
        x = x + step_size * p
        p = p + 0.5 * step_size * grad(x)
        return x, p

    return jax.lax.fori_loop(0, n_steps, one, (x, p))


def hmc_step(x, key, step_size, n_steps):
    key_p, key_u = jax.random.split(key)
    p = jax.random.normal(key_p, x.shape)
    new_x, new_p = leapfrog(x, p, step_size, n_steps)
    log_ratio = log_prob(new_x) - 0.5 * new_p @ new_p - log_prob(x) + 0.5 * p @ p
    accepted = jnp.log(jax.random.uniform(key_u)) < log_ratio
    return jnp.where(accepted, new_x, x), accepted


def run_chain(x, key, step_size, n_samples, n_steps):
    def body(x, key):
        x, accepted = hmc_step(x, key, step_size, n_steps)
        return x, (x, accepted)

    _, (samples, accepted) = jax.lax.scan(body, x, jax.random.split(key, n_samples))
    return samples, accepted.mean()


@functools.partial(jax.pmap, in_axes=(0, 0, None), static_broadcasted_argnums=(3, 4))
def sample(x, keys, step_size, n_samples, n_steps):
    chain = functools.partial(run_chain, n_samples=n_samples, n_steps=n_steps)
    return jax.vmap(chain, in_axes=(0, 0, None))(x, keys, step_size)


def rhat(samples):
    """Between-chain over within-chain spread; 1 when chains agree."""
    n = samples.shape[1]
    within = samples.var(axis=1, ddof=1).mean(axis=0)
    between = n * samples.mean(axis=1).var(axis=0, ddof=1)
    return np.sqrt((within * (n - 1) / n + between / n) / within)


def main():
    n_devices = jax.local_device_count()
    key_init, key_run = jax.random.split(jax.random.PRNGKey(0))
    shape = (n_devices, CHAINS_PER_DEVICE)
    x0 = jax.random.normal(key_init, (*shape, DIM))
    keys = jax.random.split(key_run, n_devices * CHAINS_PER_DEVICE).reshape(*shape, -1)
    samples, acceptance = sample(x0, keys, 0.2, 40, 5)
    samples = np.asarray(samples).reshape(-1, 40, DIM)
    result = {
        "mean": samples.mean((0, 1)),
        "rhat": rhat(samples),
        "acceptance": np.asarray(acceptance),
    }
    print(result)
    return {**result, "samples": samples}


if __name__ == "__main__":
    main()
