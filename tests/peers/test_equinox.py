"""equinox: `filter_pmap`, over models that are trees of arrays and of other things."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from results import NOT_HERE, as_numpy, assert_same_bits

eqx = pytest.importorskip("equinox", reason=NOT_HERE)
optax = pytest.importorskip("optax", reason=NOT_HERE)

pytestmark = pytest.mark.needs_devices(2)


def rows(*shape):
    size = int(np.prod(shape, dtype=int)) * jax.device_count()
    return np.linspace(-1, 1, size, dtype=np.float32).reshape(jax.device_count(), *shape)


def outputs(out_axes):
    """A model that all devices share, and what it says of a row; the mapped axis goes there."""
    model = eqx.nn.MLP(4, 3, width_size=8, depth=1, key=jax.random.key(0))
    mapped = eqx.filter_pmap(
        lambda model, x: jax.vmap(model)(x), in_axes=(None, 0), out_axes=out_axes
    )
    return as_numpy(mapped(model, rows(5, 4)))


@pytest.mark.parametrize("out_axes", [0, 1, 2])
def test_out_axes_are_those_of_jax_pmap(installed, with_jax_pmap, out_axes):
    found = outputs(out_axes)
    shape = [5, 3]
    shape.insert(out_axes, jax.device_count())
    assert found.shape == tuple(shape)
    assert_same_bits(found, with_jax_pmap(outputs, out_axes))


@pytest.mark.parametrize("out_axes", [-1, -2, -3])
def test_negative_out_axes_count_from_the_end(installed, out_axes):
    """jax.pmap gives another shape for -1 and -2, silently."""
    assert_same_bits(outputs(out_axes), np.moveaxis(outputs(0), 0, out_axes))


def test_outputs_go_to_axes_of_their_own_and_what_is_no_array_passes(installed):
    def several(x, name):
        return {"first": x, "last": x + 1, "same": jax.lax.pmean(x, "i"), "name": name}

    out_axes = {"first": 0, "last": 1, "same": None, "name": None}
    mapped = eqx.filter_pmap(several, axis_name="i", in_axes=(0, None), out_axes=out_axes)
    x = rows(2)
    found = mapped(x, "a name")
    np.testing.assert_array_equal(found["first"], x)
    np.testing.assert_array_equal(found["last"], x.T + 1)
    np.testing.assert_allclose(found["same"], x.mean(0), rtol=1e-6, atol=1e-7)
    assert found["name"] == "a name"


class Classifier(eqx.Module):
    """Has state, randomness and a function among its fields."""

    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    head: eqx.nn.Linear
    activation: callable

    def __init__(self, key):
        first, last = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(1, 4, 3, key=first)
        self.norm = eqx.nn.BatchNorm(4, axis_name=("device", "batch"), mode="batch")
        self.drop = eqx.nn.Dropout(0.1)
        self.head = eqx.nn.Linear(4 * 6 * 6, 3, key=last)
        self.activation = jax.nn.relu

    def __call__(self, x, state, key):
        x, state = self.norm(self.conv(x), state)
        x = self.drop(self.activation(x), key=key)
        return self.head(x.ravel()), state


def train(steps=4):
    """Trains with gradients and batch statistics averaged over devices; losses and parameters."""
    model, state = eqx.nn.make_with_state(Classifier)(jax.random.key(0))
    optimizer = optax.adam(1e-2)
    moments = optimizer.init(eqx.filter(model, eqx.is_array))

    def loss_of(model, state, images, labels, keys):
        batched = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
        logits, state = batched(images, state, keys)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return loss.mean(), state

    @eqx.filter_pmap(
        axis_name="device", in_axes=(None, None, None, 0, 0, 0), out_axes=(None, None, None, 0)
    )
    def step(model, state, moments, images, labels, keys):
        value_and_grad = eqx.filter_value_and_grad(loss_of, has_aux=True)
        (loss, state), grads = value_and_grad(model, state, images, labels, keys)
        loss, grads = jax.lax.pmean((loss, grads), "device")
        state = jax.lax.pmean(state, "device")
        updates, moments = optimizer.update(grads, moments)
        return eqx.apply_updates(model, updates), state, moments, loss

    images = rows(2, 1, 8, 8)
    labels = np.arange(jax.device_count() * 2).reshape(-1, 2) % 3
    losses = []
    for key in jax.random.split(jax.random.key(1), steps):
        keys = jax.random.split(key, (jax.device_count(), 2))
        model, state, moments, loss = step(model, state, moments, images, labels, keys)
        losses.append(loss)
    return as_numpy([losses, jax.tree.leaves(eqx.filter((model, moments), eqx.is_array))])


def test_training_gives_the_numbers_of_jax_pmap(installed, with_jax_pmap):
    losses, leaves = train()
    assert losses[-1].mean() < losses[0].mean()
    assert_same_bits([losses, leaves], with_jax_pmap(train))


def test_arguments_can_be_donated_and_the_step_lowered(installed):
    mapped = eqx.filter_pmap(lambda x: x * 2, donate="all")
    x = jax.device_put_sharded(list(jnp.asarray(rows(3))), jax.devices())
    np.testing.assert_array_equal(mapped(x), rows(3) * 2)
    assert x.is_deleted()
    lowered = eqx.filter_pmap(lambda x: x * 2).lower(rows(3))
    np.testing.assert_array_equal(lowered.compile()(rows(3)), rows(3) * 2)
