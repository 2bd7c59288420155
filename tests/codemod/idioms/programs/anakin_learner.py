"""A learner state of parameters, keys and environments, replicated over devices and a batch."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

LEARNERS = 2
NUM_ENVS = 3


class World(NamedTuple):
    position: Any
    steps: Any


class Learner(NamedTuple):
    params: Any
    moment: Any
    key: Any
    world: Any


def reset(key):
    return World(jax.random.uniform(key, (2,)), jnp.int32(0))


def move(world, action):
    position = 0.5 * world.position + action
    return World(position, world.steps + 1), -jnp.sum(position**2)


def make_learn_fn(rate, rollout):
    def _unroll(params, world, key):
        def act(world, key):
            action = params @ world.position + 0.1 * jax.random.normal(key, (2,))
            return move(world, action)

        world, rewards = jax.lax.scan(act, world, jax.random.split(key, rollout))
        return -jnp.mean(rewards), world

    def _cost(params, world, key):
        keys = jax.random.split(key, NUM_ENVS)
        losses, world = jax.vmap(_unroll, in_axes=(None, 0, 0))(params, world, keys)
        return jnp.mean(losses), world

    def _one_update(state, _):
        key, sub = jax.random.split(state.key)
        cost_and_grads = jax.value_and_grad(_cost, has_aux=True)
        (loss, world), grads = cost_and_grads(state.params, state.world, sub)
        grads = jax.lax.pmean(jax.lax.pmean(grads, "batch"), "device")
        moment = 0.9 * state.moment + grads
        return Learner(state.params - rate * moment, moment, key, world), loss

    def learn_fn(state):
        every_learner = jax.vmap(_one_update, (0, None), axis_name="batch")
        return jax.lax.scan(every_learner, state, None, length=2)

    return learn_fn


def set_up(key):
    n_devices = jax.device_count()
    learn = jax.pmap(make_learn_fn(0.1, 4), axis_name="device")

    key, *world_keys = jax.random.split(key, n_devices * LEARNERS * NUM_ENVS + 1)
    by_device = lambda x: x.reshape((n_devices, LEARNERS, NUM_ENVS) + x.shape[1:])
    worlds = jax.tree_util.tree_map(by_device, jax.vmap(reset)(jnp.stack(world_keys)))

    update_keys = jax.random.split(key, n_devices * LEARNERS)
    keys_by_device = lambda x: x.reshape((n_devices, LEARNERS) + x.shape[1:])
    update_keys = keys_by_device(update_keys)

    params = jnp.array([[0.5, -0.25], [0.125, 0.25]])
    copies = (params, jnp.zeros_like(params))
    for_learners = lambda x: jnp.broadcast_to(x, (LEARNERS,) + x.shape)
    copies = jax.tree_util.tree_map(for_learners, copies)
    copies = jax.device_put_replicated(copies, jax.devices())
    params, moment = copies
    return learn, Learner(params, moment, update_keys, worlds)


def first_copy(tree, n=2):
    return jax.tree_util.tree_map(lambda x: x[(0,) * n], tree)


def main():
    learn, state = set_up(jax.random.PRNGKey(0))
    losses = []
    for _ in range(2):
        state, loss = learn(state)
        losses.append(float(loss.mean()))
    print("losses", losses)
    steps = np.asarray(state.world.steps).reshape(-1)
    return {
        "losses": losses,
        "params": np.asarray(first_copy(state.params)),
        "positions": np.asarray(state.world.position).reshape(-1, 2),
        "steps": steps,
    }


if __name__ == "__main__":
    main()
