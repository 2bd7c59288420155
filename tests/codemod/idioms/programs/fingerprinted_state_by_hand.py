"""Training on some of the devices; copies of the state are compared by their fingerprints."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "i"


class AgentState(NamedTuple):
    params: Any
    normalizer: Any
    frames: Any


def checksum(tree):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))


def is_equal_everywhere(tree):
    """Returns, inside of a map, whether all devices have the same."""
    own = checksum(tree)
    return jax.lax.pmax(own, AXIS) - jax.lax.pmin(own, AXIS) == 0


def check_copies(tree, mesh):
    is_equal = jax.jit(
        jax.shard_map(is_equal_everywhere, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    )(tree)
    assert is_equal, "the copies differ"


def train(epochs, at_most, worlds):
    devices = jax.devices()[:at_most]
    mesh = jax.make_mesh(
        (len(devices),),
        (AXIS,),
        axis_types=(AxisType.Auto,),
        devices=devices,
    )

    def move(world, action):
        world = 0.75 * world + action
        return world, -jnp.sum(world**2, -1)

    def cost(params, normalizer, world, key):
        noise = 0.1 * jax.random.normal(key, world.shape)
        world, reward = move(world, (world - normalizer) @ params + noise)
        return -jnp.mean(reward), world

    def epoch(state, world, key):
        key = key[0]

        def step(carry, key):
            state, world = carry
            grad_fn = jax.value_and_grad(cost, has_aux=True)
            (loss, world), grads = grad_fn(state.params, state.normalizer, world, key)
            grads = jax.lax.pmean(grads, axis_name=AXIS)
            mean = jax.lax.pmean(world.mean(0), axis_name=AXIS)
            count = jax.lax.psum(world.shape[0], axis_name=AXIS)
            state = AgentState(
                state.params - 0.25 * grads,
                0.5 * state.normalizer + 0.5 * mean,
                state.frames + count,
            )
            return (state, world), loss

        carry = (state, world)
        (state, world), losses = jax.lax.scan(step, carry, jax.random.split(key, 3))
        loss = jax.lax.pmean(losses.mean(), axis_name=AXIS)
        return state, world, {"loss": loss}

    run_epoch = jax.jit(
        jax.shard_map(
            epoch,
            mesh=mesh,
            in_specs=(P(), P(AXIS), P(AXIS)),
            out_specs=(P(), P(AXIS), P()),
            check_vma=False,
        )
    )

    key, env_key = jax.random.split(jax.random.PRNGKey(0))
    world = jax.random.normal(env_key, (worlds, 2))
    state = AgentState(jnp.zeros((2, 2)), jnp.zeros(2), jnp.int32(0))
    state = jax.device_put(state, NamedSharding(mesh, P()))
    progress = []
    for _ in range(epochs):
        key, sub = jax.random.split(key)
        state, world, measured = run_epoch(state, world, jax.random.split(sub, len(devices)))
        frames = int(state.frames)
        progress.append((frames, float(measured["loss"])))
        if frames >= 128:
            break

    check_copies(state, mesh)
    params = (state.normalizer, state.params)
    return params, progress, world


def main():
    params, progress, world = train(5, at_most=4, worlds=16)
    print(progress)
    return {
        "params": jax.device_get(params),
        "progress": progress,
        "envs": np.asarray(world),
    }


if __name__ == "__main__":
    main()
