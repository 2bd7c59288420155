"""flax: its pmap helpers, and the training loop of its pmap examples end to end."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from results import NOT_HERE, as_numpy, assert_same_bits

pytest.importorskip("flax", reason=NOT_HERE)
pytest.importorskip("optax", reason=NOT_HERE)
pytest.importorskip("orbax.checkpoint", reason=NOT_HERE)

import optax
import orbax.checkpoint as ocp
from flax import jax_utils
from flax import linen as nn
from flax.training import common_utils, dynamic_scale, train_state
from flax.training.common_utils import shard

pytestmark = pytest.mark.needs_devices(4)

CLASSES = 3


class ResNet(nn.Module):
    """A convolution, a block around which the input is carried, and a head."""

    @nn.compact
    def __call__(self, x, train):
        norm = functools.partial(
            nn.BatchNorm, use_running_average=not train, momentum=0.9, axis_name="batch"
        )
        x = nn.relu(norm()(nn.Conv(4, (3, 3), use_bias=False)(x)))
        carried = x
        x = nn.relu(norm()(nn.Conv(4, (3, 3), use_bias=False)(x)))
        x = nn.Dropout(0.1, deterministic=not train)(x + carried)
        return nn.Dense(CLASSES)(x.mean((1, 2)))


class TrainState(train_state.TrainState):
    batch_stats: Any
    scale: Any


def create_state():
    model = ResNet()
    variables = jax.jit(model.init, static_argnums=2)(
        jax.random.key(0), jnp.ones((1, 8, 8, 1)), False
    )
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)
    return TrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=optax.sgd(schedule, momentum=0.9, nesterov=True),
        batch_stats=variables["batch_stats"],
        scale=dynamic_scale.DynamicScale(),
    )


def train_step(state, batch, key):
    """One step as the image classification example has it, loss scaling included."""
    key = jax.random.fold_in(key, jax.lax.axis_index("batch"))

    def loss_of(params):
        logits, updated = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            batch["image"],
            True,
            mutable=["batch_stats"],
            rngs={"dropout": key},
        )
        labels = common_utils.onehot(batch["label"], CLASSES)
        return optax.softmax_cross_entropy(logits, labels).mean(), (updated, logits)

    grad_of = state.scale.value_and_grad(loss_of, has_aux=True, axis_name="batch")
    scale, is_finite, (loss, (updated, logits)), grads = grad_of(state.params)
    accuracy = jnp.mean(jnp.argmax(logits, -1) == batch["label"])
    metrics = jax.lax.pmean({"loss": loss, "accuracy": accuracy}, axis_name="batch")
    stepped = state.apply_gradients(grads=grads, batch_stats=updated["batch_stats"], scale=scale)
    pick = functools.partial(jnp.where, is_finite)
    stepped = stepped.replace(
        params=jax.tree.map(pick, stepped.params, state.params),
        opt_state=jax.tree.map(pick, stepped.opt_state, state.opt_state),
    )
    return stepped, metrics


def batches(seed=0):
    rng = np.random.default_rng(seed)
    while True:
        image = rng.normal(size=(4 * jax.device_count(), 8, 8, 1)).astype(np.float32)
        yield {"image": image, "label": (image.sum((1, 2, 3)) > 0).astype(np.int32)}


def sync_batch_stats(state):
    mean = jax.pmap(lambda x: jax.lax.pmean(x, "x"), "x")
    return state.replace(batch_stats=mean(state.batch_stats))


def run_steps(state, iterator, steps):
    """The loop of the examples; returns the replicated state and the metrics by step."""
    step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)
    keys = jax_utils.replicate(jax.random.key(1))
    metrics = []
    for _, batch in zip(range(steps), iterator, strict=False):
        state, found = step(state, batch, keys)
        metrics.append(found)
    return sync_batch_stats(state), common_utils.get_metrics(metrics)


def train(steps=6):
    state = jax_utils.replicate(create_state())
    iterator = jax_utils.prefetch_to_device(map(shard, batches()), 2)
    state, metrics = run_steps(state, iterator, steps)
    host = jax_utils.unreplicate(state)
    return as_numpy([metrics, host.params, host.batch_stats, host.opt_state, int(host.step)])


def test_training_gives_the_numbers_of_jax_pmap(installed, with_jax_pmap):
    trained = train()
    metrics, *_, step = trained
    assert metrics["loss"].shape == (6,)
    assert step == 6
    assert_same_bits(jax.tree.leaves(trained), jax.tree.leaves(with_jax_pmap(train)))


def test_helpers_of_flax_are_the_fast_ones(installed):
    rows = jax.pmap(jnp.negative)(np.arange(jax.device_count()))
    names = [
        "flax.jax_utils.replicate",
        "flax.jax_utils.unreplicate",
        "flax.jax_utils.prefetch_to_device",
        "flax.training.common_utils.shard",
        f"{__name__}.shard",
    ]
    assert set(names) <= set(installed.patched)
    assert jax_utils.unreplicate(rows).devices() == {jax.devices()[0]}


def test_training_continues_from_an_orbax_checkpoint(installed, tmp_path):
    steps, later = 3, 3
    whole, _ = run_steps(
        jax_utils.replicate(create_state()),
        jax_utils.prefetch_to_device(map(shard, batches()), 2),
        steps + later,
    )

    source = batches()
    with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
        halfway, _ = run_steps(jax_utils.replicate(create_state()), map(shard, source), steps)
        saved = jax_utils.unreplicate(halfway)
        assert manager.save(steps, args=ocp.args.StandardSave(saved))
        manager.wait_until_finished()
    with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
        fresh = create_state()
        restored = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(fresh))
    assert_same_bits(
        as_numpy(jax.tree.leaves(restored.params)), as_numpy(jax.tree.leaves(saved.params))
    )
    assert int(restored.step) == steps

    continued, metrics = run_steps(
        jax_utils.replicate(restored),
        jax_utils.prefetch_to_device(map(shard, source), 2),
        later,
    )
    assert metrics["loss"].shape == (later,)
    first, other = (jax_utils.unreplicate(state) for state in (continued, whole))
    # The batch statistics were averaged once more, halfway: that is all that may differ.
    assert_same_bits(*(as_numpy(jax.tree.leaves(x.params)) for x in (first, other)))
    assert_same_bits(*(as_numpy(jax.tree.leaves(x.opt_state)) for x in (first, other)))


def test_replicated_state_is_restored_with_its_sharding(installed, tmp_path):
    state, _ = run_steps(jax_utils.replicate(create_state()), map(shard, batches()), 1)
    arrays = {"params": state.params, "step": state.step}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", arrays)
        checkpointer.wait_until_finished()
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, arrays)
        restored = checkpointer.restore(tmp_path / "state", abstract)
    assert_same_bits(as_numpy(restored), as_numpy(arrays))
    again, _ = run_steps(state.replace(**restored), map(shard, batches(1)), 1)
    assert int(jax_utils.unreplicate(again).step) == 2


def evaluate(count):
    """Logits of a number of examples that the devices need not divide, and their mean."""
    state = create_state()
    params = jax_utils.replicate({"params": state.params, "batch_stats": state.batch_stats})
    forward = jax_utils.pad_shard_unpad(
        jax.pmap(lambda variables, x: state.apply_fn(variables, x, False))
    )
    images = next(batches())["image"][:count]
    masked_sum = jax_utils.pad_shard_unpad(
        jax.pmap(
            lambda variables, x, mask: jax.lax.psum(
                (state.apply_fn(variables, x, False) * mask[:, None]).sum(0), "batch"
            ),
            axis_name="batch",
        ),
        static_return=True,
    )
    sums = masked_sum(params, images, np.ones(count, np.float32), min_device_batch=4)
    return as_numpy([forward(params, images), jax_utils.unreplicate(sums)])


@pytest.mark.parametrize("count", [1, 13])
def test_pad_shard_unpad_returns_one_result_per_example(installed, with_jax_pmap, count):
    logits, sums = evaluate(count)
    state = create_state()
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    expected = ResNet().apply(variables, next(batches())["image"][:count], False)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums, expected.sum(0), rtol=1e-4, atol=1e-4)
    assert_same_bits([logits, sums], with_jax_pmap(evaluate, count))


def test_unreplicate_accepts_leaves_without_a_device_axis(installed):
    names = np.array(["a", "b"] * jax.device_count())
    rows = jax.pmap(jnp.negative)(np.arange(jax.device_count()))
    assert shard({"name": names})["name"].shape == (jax.device_count(), 2)
    assert jax_utils.unreplicate({"rows": rows, "step": np.int32(3)})["step"] == 3
