"""A simulator of rollouts: tasks are sharded over the devices."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

MAX_STEPS = 3


class Tasks(NamedTuple):
    obs: Any
    key: Any


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
        self.devices = len(jax.devices())
        if population_size % self.devices or tests % self.devices:
            raise ValueError("sizes must be multiples of the number of devices")
        self.tests = tests
        self.center_of_obs = jnp.zeros(3)
        self._rollout = functools.partial(rollout, step_fn=move)
        if self.devices > 1:
            mesh = jax.make_mesh((self.devices,), ("i",), axis_types=(AxisType.Auto,))
            self._rollout = jax.jit(
                jax.shard_map(
                    self._rollout,
                    mesh=mesh,
                    in_specs=(P("i"), P("i"), P()),
                    out_specs=(P("i"), P(None, "i"), P("i")),
                    check_vma=False,
                )
            )

    def evaluate(self, params, keys, test):
        if test:
            params = jnp.repeat(params[None, :], self.tests, axis=0)
            keys = keys[: self.tests]
        tasks = reset(keys)
        params = params.reshape(-1, 3, 3)
        scores, seen, ends = self._rollout(tasks, params, self.center_of_obs)
        if not test:
            self.center_of_obs = 0.5 * self.center_of_obs + 0.5 * seen.mean(axis=(0, 1))
        return scores, ends


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
