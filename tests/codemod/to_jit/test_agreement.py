"""How much the outputs of both forms may differ, and what their samples are."""

import math

import numpy as np
import pytest

pytest.importorskip("pmapx._src.codemod.migration", reason="needs pmapx[tools]")

from pmapx._src.codemod.to_jit import agreement, decisions, samples

EPSILON = float(np.finfo(np.float32).eps)


def part(expected, found, noise=0.0, length=64):
    return agreement.difference(expected, found, noise, EPSILON, length)[0]


def test_sums_in_another_order_agree():
    x = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    assert part(x.sum(), np.float32(x[::-1].sum()), length=x.size) < 1


def test_a_step_of_another_size_does_not():
    w = np.ones(4, np.float32)
    assert part(w - 0.01 * w, w - 0.08 * w) > 1


def test_what_rounding_in_the_inputs_changes_is_no_difference():
    # Adam's first step is the sign of a gradient, which is noise where the gradient is zero.
    assert part(np.float32(0.01), np.float32(-0.01)) > 1
    assert part(np.float32(0.01), np.float32(-0.01), noise=0.02) < 1


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (np.arange(3), np.arange(1, 4)),
        (np.ones(3, np.float32), np.ones(1, np.float32)),
        (np.ones(3, np.float32), np.ones(3, np.float16)),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0])),
        ({((0, 1),): np.ones(1)}, np.ones(1)),
    ],
)
def test_integers_shapes_types_and_numbers_must_be_equal(expected, found):
    assert part(expected, found) == math.inf


def test_random_inputs_keep_ranges_and_replicated_integers():
    generator = np.random.default_rng(0)
    labels = np.array([2, 7, 5], np.int32)
    drawn = samples.drawn(labels, True, generator)
    assert drawn.dtype == labels.dtype
    assert 2 <= drawn.min() <= drawn.max() <= 7
    assert samples.drawn(labels, False, generator) is not drawn
    assert np.array_equal(samples.drawn(labels, False, generator), labels)
    squares = np.array([0.0, 0.1, 4.0], np.float32)
    assert (samples.drawn(squares, False, generator) >= 0).all()
    assert not np.array_equal(samples.drawn(squares, True, generator), squares)


def of_numbers(*pairs):
    return decisions._of_numbers("psum", [{"constant": c, "axis_size": n} for c, n in pairs], 8)


def test_the_psum_of_a_number_is_a_count_of_devices_or_of_examples():
    assert of_numbers((1, 8), (1, 1))[0] == 1
    # 4 examples on each of 8 devices, 32 in the global batch.
    assert of_numbers((4, 8), (4, 1), (32, 1))[0] == 0
    assert isinstance(of_numbers((4, 8), (4, 1), (5, 1)), str)
