"""Sampling and fitting."""

import itertools

import jax
import jax.numpy as jnp
from parallel import key_stream, mean_over_devices, of_one_device, on_devices


def energy(params, walkers):
    a = params["a"]
    return a + jnp.sum(walkers**2, -1) * (0.5 - 2 * a**2)


def fit(keys, params, walkers, observables, steps):
    """Yields the statistics of every step, then the end."""

    @on_devices
    def walk(key, params, walkers):
        key_move, key_accept = jax.random.split(key)
        moved = walkers + 0.5 * jax.random.normal(key_move, walkers.shape)
        log_ratio = -2 * params["a"] * jnp.sum(moved**2 - walkers**2, -1)
        accepted = jnp.log(jax.random.uniform(key_accept, log_ratio.shape)) < log_ratio
        return jnp.where(accepted[:, None], moved, walkers)

    def loss_fn(params, walkers):
        return jnp.mean(energy(params, walkers) ** 2)

    @on_devices
    def train_step(params, walkers):
        grads = mean_over_devices(jax.grad(loss_fn)(params, walkers))
        stats = {"energy": mean_over_devices(jnp.mean(energy(params, walkers)))}
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), stats

    for step, step_keys in enumerate(itertools.islice(key_stream(keys), steps)):
        walkers = walk(step_keys, params, walkers)
        params, stats = train_step(params, walkers)
        for observable in observables:
            stats.update(observable(step, step_keys, params, walkers))
        samples = {name: stats.pop(name) for name in list(stats) if "samples" in name}
        yield params, walkers, of_one_device(stats), samples
