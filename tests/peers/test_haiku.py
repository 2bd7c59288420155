"""dm-haiku: a pmapped step of a network with state and randomness."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from results import NOT_HERE, as_numpy, assert_close, assert_same_bits

hk = pytest.importorskip("haiku", reason=NOT_HERE)
optax = pytest.importorskip("optax", reason=NOT_HERE)

pytestmark = pytest.mark.needs_devices(4)

BATCH = 16


class TrainState(NamedTuple):
    params: hk.Params
    state: hk.State
    moments: optax.OptState


@hk.transform_with_state
def network(x, is_training):
    """Statistics cross the devices when there is an axis to cross."""
    axis = "i" if hk.running_init() is False and is_training == "mapped" else None
    norm = functools.partial(
        hk.BatchNorm, create_scale=True, create_offset=True, decay_rate=0.9, cross_replica_axis=axis
    )
    x = hk.Flatten()(jax.nn.relu(norm()(hk.Conv2D(4, 3, with_bias=False)(x), bool(is_training))))
    calls = hk.get_state("calls", (), jnp.int32, init=jnp.zeros)
    hk.set_state("calls", calls + 1)
    return hk.Linear(3)(x)


optimizer = optax.sgd(0.1, momentum=0.9)


def loss_of(params, state, key, batch, mode):
    logits, state = network.apply(params, state, key, batch["image"], mode)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return loss.mean(), state


def step(train_state, key, batch, mode):
    params, state, moments = train_state
    grads, state = jax.grad(loss_of, has_aux=True)(params, state, key, batch, mode)
    if mode == "mapped":
        grads = jax.lax.pmean(grads, axis_name="i")
    updates, moments = optimizer.update(grads, moments)
    return TrainState(optax.apply_updates(params, updates), state, moments)


def initial_state():
    params, state = network.init(jax.random.PRNGKey(0), batch(0)["image"], "mapped")
    return TrainState(params, state, optimizer.init(params))


def batch(seed):
    rng = np.random.default_rng(seed)
    image = rng.normal(size=(BATCH, 6, 6, 1)).astype(np.float32)
    return {"image": image, "label": np.arange(BATCH) % 3}


def train(steps=4):
    """The loop of haiku's ImageNet example: initialised by a pmap, kept a copy a device."""
    devices = jax.local_devices()[:4]
    mapped = jax.pmap(
        functools.partial(step, mode="mapped"), axis_name="i", donate_argnums=0, devices=devices
    )
    train_state = jax.device_put_replicated(initial_state(), devices)
    keys = jax.device_put_sharded(list(jax.random.split(jax.random.PRNGKey(1), 4)), devices)
    for seed in range(steps):
        split = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), batch(seed))
        train_state = mapped(train_state, keys, split)
    return as_numpy(jax.tree.map(lambda x: x[0], train_state))


def train_on_one_device(steps=4):
    train_state = initial_state()
    jitted = jax.jit(functools.partial(step, mode="alone"))
    for seed in range(steps):
        train_state = jitted(train_state, jax.random.PRNGKey(1), batch(seed))
    return as_numpy(train_state)


def test_step_with_state_gives_the_numbers_of_jax_pmap_and_of_one_device(installed, with_jax_pmap):
    trained = train()
    assert trained.state["~"]["calls"] == 4
    alone = train_on_one_device()
    assert_close(trained, alone, rtol=2e-4, atol=2e-5)
    assert_same_bits(tuple(trained), tuple(with_jax_pmap(train)))


def test_initialisation_under_pmap_is_the_same_on_all_devices(installed):
    count = jax.device_count()
    init = jax.pmap(lambda key, x: network.init(key, x, "mapped"), axis_name="i")
    keys = jnp.broadcast_to(jax.random.PRNGKey(0), (count, 2))
    params, _ = init(keys, np.broadcast_to(batch(0)["image"], (count, BATCH, 6, 6, 1)))
    for leaf in jax.tree.leaves(as_numpy(params)):
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[0], leaf.shape))
