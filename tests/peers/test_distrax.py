"""distrax: its distributions are pytrees whose constructors convert and check their parameters."""

import jax
import numpy as np
import pytest
from results import NOT_HERE

pytest.importorskip("distrax", reason=NOT_HERE)

import distrax

import pmapx

pytestmark = pytest.mark.needs_devices(8)

N = jax.device_count()
X = np.linspace(0.1, 0.9, 4 * N, dtype=np.float32).reshape(N, 4)
CHOICES = np.arange(N, dtype=np.int32) % 4

# A distribution with a batch of one member a device, and a value of each member.
CASES = {
    "Normal": lambda: (distrax.Normal(X, 1 + X), X),
    "Categorical of logits": lambda: (distrax.Categorical(logits=X), CHOICES),
    "Categorical of probs": lambda: (
        distrax.Categorical(probs=X / X.sum(1, keepdims=True)),
        CHOICES,
    ),
    "Gumbel": lambda: (distrax.Gumbel(X, 1 + X), X),
    "Independent": lambda: (distrax.Independent(distrax.Normal(X, 1 + X), 1), X),
    "Dirichlet": lambda: (distrax.Dirichlet(1 + X), X / X.sum(1, keepdims=True)),
    "Transformed": lambda: (
        distrax.Transformed(distrax.Normal(X, 1 + X), distrax.ScalarAffine(X, 1 + X)),
        X,
    ),
}


def log_prob(dist, value):
    return dist.log_prob(value)


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def expected(dist, value):
    return np.asarray(jax.jit(jax.vmap(log_prob))(dist, value))


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
    by_vmap = jax.grad(lambda dist: jax.vmap(log_prob)(dist, value).sum(), allow_int=True)(dist)
    for found, wanted in zip(jax.tree.leaves(by_map), jax.tree.leaves(by_vmap), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_distribution_goes_through_a_pmap_of_a_pmap():
    loc, value = X.reshape(2, 4, 4), X.reshape(2, 4, 4)
    nested = pmapx.pmap(pmapx.pmap(log_prob, "j"), "i")

    found = nested(distrax.Normal(loc, 1 + loc), value)

    np.testing.assert_allclose(found.reshape(N, 4), expected(*CASES["Normal"]()), rtol=1e-5)


def test_a_replicated_distribution_is_sampled_on_every_device():
    dist = distrax.Categorical(logits=X[0])
    keys = jax.random.split(jax.random.key(0), N)

    replicated = pmapx.replicate(dist)
    samples = pmapx.pmap(lambda dist, key: dist.sample(seed=key))(replicated, keys)

    np.testing.assert_array_equal(samples, np.stack([dist.sample(seed=key) for key in keys]))
    np.testing.assert_array_equal(pmapx.unreplicate(replicated).logits, dist.logits)


def test_a_distribution_is_a_result():
    made = pmapx.pmap(lambda x: distrax.Normal(x, 1 + x))

    for _ in range(2):
        dist = made(X)
        np.testing.assert_allclose(log_prob(dist, X), expected(*CASES["Normal"]()), rtol=1e-5)


def test_a_distribution_in_a_state_with_axes_of_its_own():
    def body(state, value):
        return state["policy"].log_prob(value) + state["bias"]

    mapped = pmapx.pmap(body, in_axes=({"policy": None, "bias": 0}, 0))
    dist = distrax.Categorical(logits=X[0])

    found = mapped({"policy": dist, "bias": np.ones(N, np.float32)}, CHOICES)

    np.testing.assert_allclose(found, 1 + dist.log_prob(CHOICES), rtol=1e-5)
