"""A cached factory of mapped functions, vectorized over tasks, with static lengths."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Problem:
    dimensions: int

    def init(self, key):
        return jax.random.normal(key, (self.dimensions,))

    def loss(self, params, noise_key, data):
        noise = 0.1 * jax.random.normal(noise_key, params.shape)
        return jnp.mean((data * (params + noise) - 1) ** 2)


class Trainer(NamedTuple):
    init: Callable
    train: Callable
    evaluate: Callable


@functools.partial(jax.pmap, static_broadcasted_argnums=1)
@functools.partial(jax.vmap, in_axes=(0, None))
def split_every_key(key, count):
    later, *now = jax.random.split(key, 1 + count)
    return jnp.stack(now), later


@functools.cache
def trainer_for(problem, rate):
    def init(key):
        return problem.init(key), jnp.int32(0)

    def train(state, keys, data):
        def step(state, inputs):
            params, count = state
            loss, grads = jax.value_and_grad(problem.loss)(params, *inputs)
            return (params - rate * grads, count + 1), loss

        return jax.lax.scan(step, state, (keys, data))

    def evaluate(state, key, data):
        return problem.loss(state[0], key, data)

    @jax.pmap
    def mean_evaluate(state, key, data):
        return jnp.mean(jax.vmap(evaluate, in_axes=(0, 0, None))(state, key, data))

    train = jax.pmap(
        jax.vmap(train, in_axes=(0, 0, None)), in_axes=(0, 0, None), donate_argnums=(0,)
    )
    return Trainer(jax.pmap(jax.vmap(init)), train, mean_evaluate)


def train_all(problem, rate, problems, key):
    n = jax.local_device_count()
    if problems % n:
        raise ValueError("problems must be divisible by the number of devices")
    trainer = trainer_for(problem, rate)
    keys = jax.random.split(key, problems).reshape(n, problems // n, -1)
    state = trainer.init(keys)
    rng = np.random.RandomState(0)
    losses = []
    for _ in range(2):
        data = rng.normal(size=(3, problem.dimensions)).astype(np.float32)
        step_keys, keys = split_every_key(keys, 3)
        state, loss = trainer.train(state, step_keys, data)
        losses.append(np.asarray(loss).reshape(problems, -1))
    held_out = rng.normal(size=(n, problem.dimensions)).astype(np.float32)
    scores = trainer.evaluate(state, keys, held_out)
    return np.concatenate(losses, axis=1), np.asarray(scores), np.asarray(state[1]).ravel()


def main():
    results = {}
    for dimensions in (3, 4):
        for rate in (0.1, 0.2):
            key = jax.random.PRNGKey(dimensions)
            results[f"{dimensions} {rate}"] = train_all(Problem(dimensions), rate, 16, key)
    assert trainer_for.cache_info().currsize == 4
    print({name: losses.mean() for name, (losses, *_) in results.items()})
    return results


if __name__ == "__main__":
    main()
