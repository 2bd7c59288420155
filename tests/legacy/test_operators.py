"""Arithmetic of a pmapped result with an array on one device, as the original had it (I5)."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmapx

pytestmark = [pytest.mark.behaviour("I5"), pytest.mark.needs_devices(8)]

ARRAY = type(jnp.zeros(()))
X = np.arange(1, 9, dtype=np.int32)
ONE = np.int32(3)
BINARY = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.mod, operator.pow, operator.and_, operator.or_, operator.xor),
    *(operator.lshift, operator.rshift, divmod),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
]
IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.ifloordiv, operator.ior]


@pytest.fixture(autouse=True, scope="module")
def installed():
    before = dict(vars(ARRAY))
    with pmapx.install() as handle:
        yield handle
    assert dict(vars(ARRAY)) == before


def pmapped(x=X, **options):
    return jax.pmap(lambda a: a, **options)(x)


@pytest.mark.parametrize("op", [*BINARY, *IN_PLACE], ids=lambda op: op.__name__)
@pytest.mark.parametrize("device", [0, 3])
def test_the_pmapped_operand_is_transferred_to_the_single_device(op, device):
    single = jax.device_put(ONE, jax.devices()[device])

    for result, expected in [
        (op(pmapped(), single), op(X.copy(), ONE)),
        (op(single, pmapped()), op(ONE, X)),
    ]:
        for got, wanted in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6)
            # x ** 3 of a known 3 is no operation of two arrays.
            assert op is operator.pow or got.devices() == {jax.devices()[device]}


def test_a_matrix_product_and_an_index_of_one_device():
    vector = jax.device_put(X, jax.devices()[2])
    indices = jax.device_put(np.array([0, 5]), jax.devices()[2])

    assert (pmapped() @ vector, vector @ pmapped()) == (X @ X, X @ X)
    np.testing.assert_array_equal(pmapped()[indices], X[[0, 5]])
    np.testing.assert_array_equal(vector[pmapped(np.arange(8))], X)


def test_a_replicated_result_beside_an_array_of_one_device():
    total = jax.pmap(lambda a: jax.lax.psum(a, "i"), "i", out_axes=None)(X)
    single = jax.device_put(ONE, jax.devices()[5])

    mean = total // single

    assert (int(mean), mean.devices()) == (X.sum() // ONE, {jax.devices()[5]})


def test_operands_on_different_devices_are_combined_on_the_default_device():
    reversed_order = pmapped(devices=jax.devices()[::-1])
    of_four = pmapped(X[:4], devices=jax.devices()[:4])

    total = pmapped() + reversed_order
    assert total.devices() == {jax.devices()[0]}
    np.testing.assert_array_equal(total, X + X)
    np.testing.assert_array_equal(of_four * pmapped()[:4], X[:4] ** 2)
    # Not committed, so that it goes on with arrays of any other device.
    assert (total + jax.device_put(ONE, jax.devices()[4])).devices() == {jax.devices()[4]}


def test_what_jax_computes_is_left_to_it():
    other = pmapped()

    result = pmapped() + other

    assert result.sharding == other.sharding
    assert (pmapped() + 1).sharding == other.sharding
    assert (jnp.ones(()) + jnp.ones(())).devices() == {jax.devices()[0]}


def test_other_errors_are_raised_as_they_are():
    one, other = (jax.device_put(ONE, device) for device in jax.devices()[:2])

    with pytest.raises(ValueError, match="incompatible devices"):
        one + other
    with pytest.raises((TypeError, ValueError), match="shapes"):
        pmapped() + np.ones(3)
    with pytest.raises(TypeError):
        pmapped() + "text"


def test_tracers_are_left_to_jax():
    single = jax.device_put(np.float32(2), jax.devices()[0])

    gradient = jax.grad(lambda a: (a * a).sum() / 2)(pmapped(X.astype(np.float32)))
    np.testing.assert_array_equal(gradient, X)
    assert jax.eval_shape(lambda a: a / single, pmapped()).shape == (8,)


def test_the_operators_are_listed(installed):
    assert "jax.Array.__truediv__" in installed.patched
