"""A data-parallel step of Flax and Optax keeps its state equal on all devices: that is found."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from results import NOT_HERE

import pmapx
from varying_outputs import outputs_of

nn = pytest.importorskip("flax.linen", reason=NOT_HERE)
optax = pytest.importorskip("optax", reason=NOT_HERE)
train_state = pytest.importorskip("flax.training.train_state", reason=NOT_HERE)

N = jax.device_count()


class Net(nn.Module):
    statistics_axis: str | None

    @nn.compact
    def __call__(self, x, is_training):
        x = nn.Conv(8, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not is_training, axis_name=self.statistics_axis)(x)
        x = nn.relu(x).mean((1, 2))
        x = nn.Dropout(0.5, deterministic=not is_training)(x)
        return nn.Dense(10)(x)


class State(train_state.TrainState):
    batch_stats: Any
    ema: Any
    key: Any


def make_state(statistics_axis, optimizer):
    net = Net(statistics_axis)
    variables = net.init(jax.random.key(0), jnp.ones((1, 8, 8, 3)), False)
    return State.create(
        apply_fn=net.apply,
        params=variables["params"],
        tx=optimizer,
        batch_stats=variables["batch_stats"],
        ema=variables["params"],
        key=jax.random.key(1),
    )


def step(state, batch, *, reduce=lambda tree: lax.pmean(tree, "batch")):
    key, own = jax.random.split(state.key)
    own = jax.random.fold_in(own, lax.axis_index("batch"))

    def loss_of(params):
        logits, updates = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            batch["image"],
            True,
            mutable=["batch_stats"],
            rngs={"dropout": own},
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return losses.mean(), updates

    (loss, updates), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    new = state.apply_gradients(grads=reduce(grads), batch_stats=updates["batch_stats"], key=key)
    ema = optax.incremental_update(new.params, state.ema, 0.01)
    return new.replace(ema=ema), loss


OPTIMIZERS = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 100))
)
BATCH = {
    "image": np.ones((N, 2, 8, 8, 3), np.float32),
    "label": np.zeros((N, 2), np.int32),
}


def varying(statistics_axis="batch", **options):
    state = jax.tree.map(lambda x: jnp.stack([x] * N), make_state(statistics_axis, OPTIMIZERS))
    mapped = pmapx.pmap(lambda state, batch: step(state, batch, **options), "batch")
    outputs = outputs_of(mapped.trace(state, BATCH), equal=[0], parameters=("state", "batch"))
    return [output for output in outputs if not output.variation.is_replicated]


def test_parameters_optimizer_state_ema_statistics_and_keys_stay_equal():
    assert [output.path for output in varying()] == ["[1]"]  # The loss of each device.


def test_statistics_without_an_axis_vary_and_the_line_of_the_model_is_named():
    *statistics, _ = varying(statistics_axis=None)
    assert {output.path for output in statistics} == {
        "[0].batch_stats['BatchNorm_0']['mean']",
        "[0].batch_stats['BatchNorm_0']['var']",
    }
    for output in statistics:
        assert "argument 1 'batch' at ['image']" in str(output)
        assert "no pmean before test_replicated_state.py:" in str(output)


def test_gradients_that_are_not_reduced_are_found():
    paths = [output.path for output in varying(reduce=lambda tree: tree)]
    assert any(".params" in path for path in paths)
    assert any(".opt_state" in path for path in paths)
    assert any(".ema" in path for path in paths)
    assert not any("batch_stats" in path or ".key" in path for path in paths)


def test_such_a_step_needs_no_stacked_state():
    state = make_state("batch", OPTIMIZERS)
    mapped = pmapx.pmap(step, "batch", in_axes=(None, 0), out_axes=pmapx.AUTO)
    new, loss = mapped(state, BATCH)
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, state)
    assert loss.shape == (N,)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(new.params))
