"""Parallel MCMC: Hamiltonian chains, several on each device, that share one step size.

During warmup, the step size adapts to the mean acceptance of all chains, a collective in each step.
The draws then stay on their devices. The diagnostics (means, and R-hat, which is 1 if the chains
agree) are reductions over the devices.
"""

import argparse
import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pmapx

MEAN = jnp.array([1.0, -2.0, 0.5])
SCALE = jnp.array([1.0, 0.5, 2.0])
CHAINS = ("devices", "here")  # the two mapped axes of the chains


def log_density(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(((x - MEAN) / SCALE) ** 2)


def hmc_step(key: jax.Array, x: jax.Array, step_size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One proposal of 5 leapfrog steps; returns the next state and the chance it was taken with."""
    momentum_key, accept_key = jax.random.split(key)
    momentum = jax.random.normal(momentum_key, x.shape)

    def leapfrog(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        q, p = state
        p = p + 0.5 * step_size * jax.grad(log_density)(q)
        q = q + step_size * p
        return q, p + 0.5 * step_size * jax.grad(log_density)(q)

    q, p = lax.fori_loop(0, 5, leapfrog, (x, momentum))
    change = log_density(q) - log_density(x) + 0.5 * (momentum @ momentum - p @ p)
    chance = jnp.exp(jnp.minimum(0.0, change))
    return jnp.where(jax.random.uniform(accept_key) < chance, q, x), chance


def chain(key: jax.Array, warmup: int, draws: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One chain of many: its draws, the step size that all found, and how often it moved."""
    start_key, warmup_key, draw_key = jax.random.split(key, 3)
    x = 5 * jax.random.normal(start_key, MEAN.shape)  # far from each other, to see them meet

    def adapt(state: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple, None]:
        x, log_size = state
        x, chance = hmc_step(key, x, jnp.exp(log_size))
        return (x, log_size + 0.05 * (lax.pmean(chance, CHAINS) - 0.8)), None

    (x, log_size), _ = lax.scan(adapt, (x, jnp.log(0.1)), jax.random.split(warmup_key, warmup))

    def draw(x: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        x, chance = hmc_step(key, x, jnp.exp(log_size))
        return x, (x, chance)

    _, (xs, chances) = lax.scan(draw, x, jax.random.split(draw_key, draws))
    return xs, jnp.exp(log_size), lax.pmean(chances.mean(), CHAINS)


def diagnose(xs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean over all chains, and R-hat, from one chain's draws."""
    draws = xs.shape[0]
    mean = lax.pmean(xs.mean(0), CHAINS)
    within = lax.pmean(xs.var(0, ddof=1), CHAINS)
    count = lax.psum(1, CHAINS)
    between = draws * lax.psum((xs.mean(0) - mean) ** 2, CHAINS) / (count - 1)
    return mean, jnp.sqrt(((draws - 1) / draws * within + between / draws) / within)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chains", type=int, default=4, help="on each device (%(default)s)")
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--draws", type=int, default=500)
    options = parser.parse_args()

    devices = jax.device_count()
    keys = jax.random.split(jax.random.key(0), (devices, options.chains))

    # vmap over the chains of a device, pmap over the devices: collectives run over both.
    def chains_here(keys: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        one = lambda key: chain(key, options.warmup, options.draws)
        return jax.vmap(one, axis_name="here", out_axes=(0, None, None))(keys)

    sample = pmapx.pmap(chains_here, axis_name="devices", out_axes=(0, None, None))
    xs, step_size, accepted = sample(keys)
    diagnose_here = jax.vmap(diagnose, axis_name="here", out_axes=None)
    mean, r_hat = pmapx.pmap(diagnose_here, axis_name="devices", out_axes=None)(xs)

    print(f"{devices * options.chains} chains on {devices} device(s), draws {xs.shape}")
    print(f"step size {float(step_size):.3f}, accepted {float(accepted):.0%}")
    print(f"mean  {np.asarray(mean).round(2)}  (true {np.asarray(MEAN)})")
    print(f"R-hat {np.asarray(r_hat).round(3)}")
    assert np.allclose(mean, MEAN, atol=0.2), "the chains found another distribution"
    assert np.all(np.asarray(r_hat) < 1.05), "the chains do not agree"


if __name__ == "__main__":
    main()
