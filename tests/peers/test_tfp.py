"""TensorFlow Probability on JAX: distributions that look at their children."""

import jax
import numpy as np
import pytest
from results import NOT_HERE

pytest.importorskip("tensorflow_probability.substrates.jax", reason=NOT_HERE)

from tensorflow_probability.substrates import jax as tfp

import pmapx

pytestmark = pytest.mark.needs_devices(8)

tfd = tfp.distributions
N = jax.device_count()
X = np.linspace(0.1, 0.9, 4 * N, dtype=np.float32).reshape(N, 4)
CHOICES = np.arange(N, dtype=np.int32) % 4

# A distribution with a batch of one member a device, and a value of each member.
CASES = {
    "Normal": lambda: (tfd.Normal(X, 1 + X), X),
    "MultivariateNormalTriL": lambda: (
        tfd.MultivariateNormalTriL(X, np.tril(np.ones((N, 4, 4), np.float32))),
        X,
    ),
    "MultivariateNormalDiag": lambda: (tfd.MultivariateNormalDiag(X, 1 + X), X),
    "Categorical": lambda: (tfd.Categorical(logits=X), CHOICES),
    "Dirichlet": lambda: (tfd.Dirichlet(1 + X), X / X.sum(1, keepdims=True)),
    "Gamma": lambda: (tfd.Gamma(1 + X, 1 + X), X),
    "Independent": lambda: (tfd.Independent(tfd.Normal(X, 1 + X), 1), X),
    "MixtureSameFamily": lambda: (
        tfd.MixtureSameFamily(tfd.Categorical(logits=X), tfd.Normal(X, 1 + X)),
        X[:, 0],
    ),
    "TransformedDistribution": lambda: (
        tfd.TransformedDistribution(tfd.Normal(X, 1 + X), tfp.bijectors.Exp()),
        X,
    ),
}


def log_prob(dist, value):
    return dist.log_prob(value)


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def expected(dist, value):
    return np.asarray(log_prob(dist, value))


def test_a_distribution_is_an_argument_and_is_cached(case):
    # A function of its own: maps of one function share programs, also between tests.
    mapped = pmapx.pmap(lambda dist, value: log_prob(dist, value))

    for _ in range(3):
        np.testing.assert_allclose(mapped(*case()), expected(*case()), rtol=1e-5)

    assert mapped.cache_info().compiles == 1


def test_a_distribution_goes_through_the_stages(case):
    compiled = pmapx.pmap(log_prob).lower(*case()).compile()

    np.testing.assert_allclose(compiled(*case()), expected(*case()), rtol=1e-5)


def test_a_distribution_goes_through_jit_and_grad(case):
    mapped = pmapx.pmap(log_prob)
    dist, value = case()

    np.testing.assert_allclose(jax.jit(mapped)(dist, value), expected(dist, value), rtol=1e-5)
    by_map = jax.grad(lambda dist: mapped(dist, value).sum(), allow_int=True)(dist)
    alone = jax.grad(lambda dist: log_prob(dist, value).sum(), allow_int=True)(dist)
    for found, wanted in zip(jax.tree.leaves(by_map), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_distribution_goes_through_a_pmap_of_a_pmap():
    loc, value = X.reshape(2, 4, 4), X.reshape(2, 4, 4)
    nested = pmapx.pmap(pmapx.pmap(log_prob, "j"), "i")

    found = nested(tfd.Normal(loc, 1 + loc), value)

    np.testing.assert_allclose(found.reshape(N, 4), expected(*CASES["Normal"]()), rtol=1e-5)


def test_a_replicated_distribution_is_used_on_every_device():
    dist = tfd.MultivariateNormalTriL(X[0], np.tril(np.ones((4, 4), np.float32)))

    replicated = pmapx.replicate(dist)
    found = pmapx.pmap(log_prob)(replicated, X)

    np.testing.assert_allclose(found, log_prob(dist, X), rtol=1e-5)
    np.testing.assert_array_equal(pmapx.unreplicate(replicated).mean(), dist.mean())


def test_a_distribution_is_a_result():
    made = pmapx.pmap(lambda x: tfd.Dirichlet(1 + x))

    for _ in range(2):
        dist = made(X)
        value = X / X.sum(1, keepdims=True)
        np.testing.assert_allclose(
            log_prob(dist, value), expected(*CASES["Dirichlet"]()), rtol=1e-5
        )
