"""Synthetic handwritten digits: a Flax network with BatchNorm, trained on all devices.

The loop is that of many published programs: a stacked TrainState, one copy per device, batches that
are prefetched to the devices, gradients and batch statistics averaged over them, and a checkpoint
and metrics read from the first copy. The program draws the images: each digit is a few strokes on a
small grid, shifted and with noise.

Needs flax and optax.
"""

import argparse
import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state
from jax import lax

import pmapx

# The strokes of a pocket calculator's digits: top, upper left and right, middle, lower left and
# right, bottom.
UPPER, LOWER, ACROSS = slice(1, 4), slice(5, 8), slice(1, 4)
STROKES = [(0, ACROSS), (UPPER, 0), (UPPER, 4), (4, ACROSS), (LOWER, 0), (LOWER, 4), (8, ACROSS)]
LIT = ["1110111", "0010010", "1011101", "1011011", "0111010"]
LIT += ["1101011", "1101111", "1010010", "1111111", "1111011"]


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, is_training: bool) -> jax.Array:
        x = nn.Conv(16, (3, 3))(x)
        # One mean and variance for the batches of all devices.
        x = nn.BatchNorm(not is_training, momentum=0.9, axis_name="batch")(x)
        x = nn.avg_pool(nn.relu(x), (2, 2), strides=(2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class State(train_state.TrainState):
    statistics: Any


def train_step(state: State, batch: dict[str, jax.Array]) -> tuple[State, dict[str, jax.Array]]:
    def loss(params: Any) -> tuple[jax.Array, tuple[jax.Array, Any]]:
        variables = {"params": params, "batch_stats": state.statistics}
        logits, updates = state.apply_fn(variables, batch["image"], True, mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return losses.mean(), (logits, updates["batch_stats"])

    (value, (logits, statistics)), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
    state = state.apply_gradients(grads=lax.pmean(gradient, "batch"), statistics=statistics)
    correct = jnp.mean(jnp.argmax(logits, -1) == batch["label"])
    return state, lax.pmean({"loss": value, "accuracy": correct}, "batch")


def eval_step(state: State, batch: dict[str, jax.Array]) -> jax.Array:
    variables = {"params": state.params, "batch_stats": state.statistics}
    correct = jnp.argmax(state.apply_fn(variables, batch["image"], False), -1) == batch["label"]
    return lax.pmean(jnp.mean(correct), "batch")


def digits(random: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    label = random.integers(10, size=rows)
    image = 0.2 * random.normal(size=(rows, 10, 10))
    for canvas, digit, (down, right) in zip(
        image, label, random.integers((2, 3), size=(rows, 2)), strict=True
    ):
        for is_lit, stroke in zip(LIT[digit], STROKES, strict=True):
            canvas[down:, right:][stroke] += int(is_lit)
    return {"image": image[..., None].astype(np.float32), "label": label.astype(np.int32)}


def batches(steps: int, rows: int) -> Iterator[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    devices = jax.local_device_count()
    for _ in range(steps):
        drawn = digits(random, devices * rows)
        yield jax.tree.map(lambda x: x.reshape(devices, rows, *x.shape[1:]), drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--batch-size", type=int, default=16, help="examples per device (%(default)s)"
    )
    options = parser.parse_args()

    network = Network()
    variables = network.init(jax.random.key(0), np.ones((1, 10, 10, 1), np.float32), False)
    state = State.create(
        apply_fn=network.apply,
        params=variables["params"],
        statistics=variables["batch_stats"],
        tx=optax.adam(1e-2),
    )
    state = pmapx.replicate(state)

    train = pmapx.pmap(train_step, axis_name="batch", donate_argnums=0)
    for step, batch in enumerate(
        pmapx.prefetch(batches(options.steps, options.batch_size)), start=1
    ):
        state, metrics = train(state, batch)
        if step % 20 == 0:
            seen = {name: f"{value:.3f}" for name, value in pmapx.to_host(metrics).items()}
            print(f"step {step}: {seen}")

    held_out = pmapx.shard_batch(digits(np.random.default_rng(2), jax.local_device_count() * 100))
    evaluate = pmapx.pmap(eval_step, axis_name="batch", out_axes=None)
    accuracy = float(evaluate(state, held_out))
    saved = pmapx.to_host(state.params)  # what a checkpoint holds: one copy, on the host
    leaves = sum(leaf.size for leaf in jax.tree.leaves(saved))
    print(f"accuracy {accuracy:.1%} on {jax.device_count()} device(s), {leaves} parameters")
    assert accuracy > 0.9, "the network did not learn"


if __name__ == "__main__":
    main()
