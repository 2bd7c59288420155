"""chex: the tools that tests of pmapped code use."""

import unittest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from results import NOT_HERE

chex = pytest.importorskip("chex", reason=NOT_HERE)


def summed(x):
    return x + jax.lax.psum(x, "i")


def rows():
    return np.arange(2.0 * jax.device_count(), dtype=np.float32).reshape(-1, 2)


def test_fake_pmap_stands_in_for_the_installed_one_and_goes_again(installed):
    expected = rows() + rows().sum(0)
    ours = jax.pmap
    with chex.fake_pmap():
        assert jax.pmap is not ours
        np.testing.assert_array_equal(jax.pmap(summed, axis_name="i")(rows()), expected)
    assert jax.pmap is ours
    np.testing.assert_array_equal(jax.pmap(summed, axis_name="i")(rows()), expected)


class Variants(chex.TestCase):
    @chex.all_variants
    def test_sum(self):
        add = self.variant(lambda x, y: x + y)
        np.testing.assert_array_equal(add(jnp.arange(3.0), 1.0), np.arange(3.0) + 1)


# Only run below, where pmapx is installed.
Variants.__test__ = False


def test_variants_of_a_function_agree(installed):
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(Variants)
    outcome = unittest.TestResult()
    tests.run(outcome)
    assert not outcome.errors, outcome.errors[0][1]
    assert not outcome.failures, outcome.failures[0][1]
    assert outcome.testsRun >= 4
