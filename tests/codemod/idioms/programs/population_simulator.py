"""A simulator of rollouts: tasks are split over the devices, results merged and transposed."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MAX_STEPS = 3


class Tasks(NamedTuple):
    obs: Any
    key: Any


@jax.jit
def to_parts(tree):
    """Gives every device its part of the first axis."""
    count = jax.local_device_count()
    return jax.tree.map(lambda leaf: jnp.stack(jnp.split(leaf, count)), tree)


@jax.jit
def joined_by_step(x):
    """From (devices, steps, jobs of a device, ...) to (steps, jobs, ...)."""
    x = jnp.swapaxes(x, 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])


@jax.jit
def joined(tree):
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def reset(keys):
    return Tasks(jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys), keys)


def move(state, action):
    obs = 0.5 * state.obs + action
    key = jax.vmap(lambda key: jax.random.split(key)[0])(state.key)
    noise = jax.vmap(lambda key: jax.random.normal(key, (3,)))(key)
    return Tasks(obs + 0.1 * noise, key), -jnp.sum(obs**2, axis=-1)


def rollout(tasks, params, center_of_obs, step_fn):
    def one_step(state, _):
        normed = state.obs - center_of_obs
        action = jnp.einsum("jab,jb->ja", params, normed)
        next_state, reward = step_fn(state, action)
        return next_state, (reward, state.obs)

    state, (rewards, obs) = jax.lax.scan(one_step, tasks, None, MAX_STEPS)
    return rewards.sum(0), obs, state


class Simulator:
    def __init__(self, population_size, tests):
        self.devices = len(jax.local_devices())
        if population_size % self.devices or tests % self.devices:
            raise ValueError("sizes must be multiples of the number of devices")
        self.tests = tests
        self.center_of_obs = jnp.zeros(3)
        self._rollout = functools.partial(rollout, step_fn=move)
        if self.devices > 1:
            self._rollout = jax.jit(jax.pmap(self._rollout, in_axes=(0, 0, None)))

    def evaluate(self, params, keys, test):
        if test:
            params = jnp.repeat(params[None, :], self.tests, axis=0)
            keys = keys[: self.tests]
        tasks = reset(keys)
        params = params.reshape(-1, 3, 3)
        if self.devices > 1:
            params, tasks = to_parts((params, tasks))
        scores, seen, ends = self._rollout(tasks, params, self.center_of_obs)
        if self.devices > 1:
            seen, ends = joined_by_step(seen), joined(ends)
        if not test:
            self.center_of_obs = 0.5 * self.center_of_obs + 0.5 * seen.mean(axis=(0, 1))
        return scores.ravel(), ends


def main():
    simulator = Simulator(population_size=32, tests=8)
    key = jax.random.PRNGKey(3)
    center = jnp.zeros(9)
    best = []
    for _ in range(3):
        key, ask_key, task_key = jax.random.split(key, 3)
        population = center + 0.2 * jax.random.normal(ask_key, (32, 9))
        scores, _ = simulator.evaluate(population, jax.random.split(task_key, 32), test=False)
        elite = jnp.argsort(-scores)[:8]
        center = population[elite].mean(0)
        best.append(float(scores[elite[0]]))
    scores, states = simulator.evaluate(center, jax.random.split(key, 32), test=True)
    print("best", best)
    return {
        "best": best,
        "center": np.asarray(center),
        "test": np.asarray(scores),
        "center_of_obs": np.asarray(simulator.center_of_obs),
        "final": np.asarray(states.obs),
    }


if __name__ == "__main__":
    main()
