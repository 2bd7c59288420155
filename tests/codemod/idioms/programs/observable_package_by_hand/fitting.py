"""Sampling and fitting."""

import itertools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from parallel import AXIS, key_stream, mean_over_devices, shard_map


def energy(params, walkers):
    a = params["a"]
    return a + jnp.sum(walkers**2, -1) * (0.5 - 2 * a**2)


def fit(keys, params, walkers, observables, steps):
    """Yields the statistics of every step, then the end."""

    def walk(key, params, walkers):
        key_move, key_accept = jax.random.split(key[0])
        moved = walkers + 0.5 * jax.random.normal(key_move, walkers.shape)
        log_ratio = -2 * params["a"] * jnp.sum(moved**2 - walkers**2, -1)
        accepted = jnp.log(jax.random.uniform(key_accept, log_ratio.shape)) < log_ratio
        return jnp.where(accepted[:, None], moved, walkers)

    def loss_fn(params, walkers):
        return jnp.mean(energy(params, walkers) ** 2)

    def train_step(params, walkers):
        grads = mean_over_devices(jax.grad(loss_fn)(params, walkers))
        stats = {"energy": mean_over_devices(jnp.mean(energy(params, walkers)))}
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), stats

    per_device = P(AXIS)
    walk = jax.jit(shard_map(walk, (per_device, P(), per_device), per_device))
    train_step = jax.jit(shard_map(train_step, (P(), per_device), P()))
    for step, step_keys in enumerate(itertools.islice(key_stream(keys), steps)):
        walkers = walk(step_keys, params, walkers)
        params, stats = train_step(params, walkers)
        for observable in observables:
            stats.update(observable(step, step_keys, params, walkers))
        samples = {name: stats.pop(name) for name in list(stats) if "samples" in name}
        yield params, walkers, stats, samples
