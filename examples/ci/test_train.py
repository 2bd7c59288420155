"""Budgets of the training step, checked by ``pytest --pmapx`` without accelerators."""

import jax
import numpy as np
import pytest
import train

import pmapx.testing


@pytest.fixture
def step_and_arguments():
    step, shapes = train.build(jax.devices())
    arguments = jax.tree.map(
        lambda s: jax.device_put(np.full(s.shape, 0.01, s.dtype), s.sharding), shapes
    )
    return step, arguments


@pytest.mark.pmapx(compiles=1, collectives={"all-reduce": 1}, bytes="4MiB", memory="8MiB")
def test_a_step_reduces_the_gradients_once(step_and_arguments):
    step, (weights, *batch) = step_and_arguments
    for _ in range(3):
        weights, _ = step(weights, *batch)
    pmapx.testing.assert_replicated(weights)


def test_nothing_is_gathered(step_and_arguments):
    step, arguments = step_and_arguments
    pmapx.testing.assert_no_gather(step, *arguments)
