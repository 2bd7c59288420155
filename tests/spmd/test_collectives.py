"""Every collective of `jax.lax`, its gradient and its transpose (A13), and `out_axes=None` (A6)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pmapx
from collective_models import collective_cases
from oracle import assert_same, by_vmap

N = jax.device_count()
CASES = collective_cases(N)
LINEAR = [case for case in CASES if case.is_linear]


def weights(case):
    """A weight for every number that comes out, so that no two cotangents are alike."""
    shape = jax.eval_shape(case.model, case.rows(N)).shape
    return jnp.arange(1, 1 + np.prod(shape), dtype=jnp.float32).reshape(shape)


def pulled_back(case):
    """What the weights, as cotangents, pull back to the rows, by the model."""
    return jax.linear_transpose(case.model, case.rows(N))(weights(case))[0]


@pytest.mark.behaviour("A13")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_collective_returns_the_right_value_on_every_device(case):
    x = case.rows(N)

    result = pmapx.pmap(case.call, "i")(x)

    assert_same(result, case.model(x))
    if case.in_vmap:
        assert_same(result, jax.jit(by_vmap(case.call, "i"))(x))


@pytest.mark.behaviour("A13")
@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_the_gradient_taken_inside_is_that_of_the_sum_of_all_losses(case):
    def loss(x, w):
        return (w * case.call(x)).sum()

    gradient = pmapx.pmap(jax.grad(loss), "i")(case.rows(N), weights(case))

    assert_same(gradient, pulled_back(case))


@pytest.mark.no_context_mesh(
    "JAX takes no cotangent of another type than the output's", kind="explicit"
)
@pytest.mark.behaviour("A13")
@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_the_gradient_outside_is_that_of_the_mapped_function(case):
    value, pull_back = jax.vjp(pmapx.pmap(case.call, "i"), case.rows(N))

    assert_same(value, case.model(case.rows(N)))
    assert_same(pull_back(weights(case)), (pulled_back(case),))


@pytest.mark.no_context_mesh(
    "JAX takes no cotangent of another type than the output's", kind="explicit"
)
@pytest.mark.behaviour("A13")
@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_the_transpose_of_the_map_is_the_transpose_of_the_collective(case):
    (transposed,) = jax.linear_transpose(pmapx.pmap(case.call, "i"), case.rows(N))(weights(case))

    assert_same(transposed, pulled_back(case))


@pytest.mark.behaviour("A13")
@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_tangents_go_through_a_collective_as_values_do(case):
    x, tangent = case.rows(N), case.rows(N, seed=1)

    actual = jax.jvp(pmapx.pmap(case.call, "i"), (x,), (tangent,))

    assert_same(actual, jax.jvp(case.model, (x,), (tangent,)))


@pytest.mark.behaviour("A13")
@pytest.mark.parametrize("collective", [lax.pmax, lax.pmin])
def test_maxima_and_minima_refuse_differentiation_as_they_do_in_the_original(collective):
    mapped = pmapx.pmap(lambda x: collective(x, "i"), "i")

    with pytest.raises(NotImplementedError, match=r"[Dd]ifferentiation"):
        jax.grad(lambda x: mapped(x).sum())(jnp.ones(N))


@pytest.mark.behaviour("A13")
def test_a_tree_of_several_dtypes_is_summed_leaf_by_leaf():
    def fun(tree):
        return lax.psum(tree, "i"), lax.pmax(tree, "i")

    tree = {
        "f": jnp.arange(2.0 * N).reshape(N, 2),
        "i": (jnp.arange(N), None),
        "h": jnp.arange(N, dtype=jnp.bfloat16),
    }

    assert_same(pmapx.pmap(fun, "i")(tree), by_vmap(fun, "i")(tree))


@pytest.mark.behaviour("A13")
@pytest.mark.parametrize("oversubscribe", [False, True])
def test_typed_keys_are_sent_around(oversubscribe):
    n = 2 * N if oversubscribe else N
    keys = jax.random.split(jax.random.key(0), n)
    rotation = [(k, (k + 1) % n) for k in range(n)]

    sent = pmapx.pmap(
        lambda key: lax.ppermute(key, "i", rotation), "i", oversubscribe=oversubscribe
    )(keys)

    np.testing.assert_array_equal(
        jax.random.key_data(sent), np.roll(jax.random.key_data(keys), 1, axis=0)
    )


@pytest.mark.behaviour("A13")
def test_the_sum_of_a_python_constant_is_known_while_tracing():
    seen = []

    def fun(x):
        seen.append(lax.psum(1, "i"))
        return x / lax.psum(1, "i")

    pmapx.pmap(fun, "i")(jnp.ones(N))

    assert all(isinstance(size, int) and size == N for size in seen)


@pytest.mark.behaviour("A13")
def test_a_variable_that_does_not_vary_is_still_summed_over_all():
    result = pmapx.pmap(lambda x, w: x + lax.psum(w, "i"), "i", in_axes=(0, None))(
        jnp.zeros(N), jnp.float32(2)
    )

    assert_same(result, jnp.full(N, 2.0 * N, jnp.float32))


@pytest.mark.behaviour("A13")
def test_an_axis_name_that_is_not_bound_is_a_name_error():
    with pytest.raises(NameError, match="elsewhere"):
        pmapx.pmap(lambda x: lax.psum(x, "elsewhere"), "i")(jnp.ones(N))


@pytest.mark.behaviour("A13")
def test_collectives_work_inside_scan_cond_and_while():
    def fun(x):
        x, sums = lax.scan(lambda c, _: (c + 1, lax.psum(c, "i")), x, None, length=3)
        x = lax.cond(sums.sum() > 0, lambda x: x + lax.pmax(x, "i"), lambda x: x, x)
        return lax.fori_loop(0, 2, lambda _, x: lax.pmin(x, "i") + x, x)

    assert_same(pmapx.pmap(fun, "i")(jnp.arange(float(N))), by_vmap(fun, "i")(jnp.arange(float(N))))


@pytest.mark.behaviour("A13")
def test_gradients_with_respect_to_shared_weights_are_not_summed_unasked():
    x = jnp.arange(1.0, N + 1)

    def loss(w, x):
        return w * x

    own = pmapx.pmap(jax.grad(loss), "i", in_axes=(None, 0))(2.0, x)
    averaged = pmapx.pmap(
        lambda w, x: lax.pmean(jax.grad(loss)(w, x), "i"), "i", in_axes=(None, 0), out_axes=None
    )(2.0, x)

    np.testing.assert_array_equal(own, x)
    np.testing.assert_array_equal(averaged, x.mean())


@pytest.mark.behaviour("A13")
def test_a_training_step_keeps_replicas_equal_to_one_big_batch():
    x = jnp.arange(4.0 * N).reshape(N, 4) / (4 * N)
    y = 3 * x + 1

    def loss(params, x, y):
        return ((params["w"] * x + params["b"] - y) ** 2).mean()

    def step(params, x, y):
        grads = lax.pmean(jax.grad(loss)(params, x, y), "i")
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = {"w": jnp.zeros(()), "b": jnp.zeros(())}
    replicated = jax.tree.map(lambda p: jnp.broadcast_to(p, (N,)), params)
    mapped = pmapx.pmap(step, "i")
    for _ in range(3):
        replicated = mapped(replicated, x, y)
        whole = jax.grad(loss)(params, x.ravel(), y.ravel())
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, whole)

    for name, value in params.items():
        np.testing.assert_allclose(replicated[name], np.full(N, value), rtol=1e-5)


@pytest.mark.behaviour("A6")
def test_the_gradient_through_an_output_that_is_the_same_everywhere():
    mapped = pmapx.pmap(lambda x: lax.psum(x * x, "i"), "i", out_axes=None)
    x = jnp.arange(float(N))

    assert_same(mapped(x), (x * x).sum())
    assert_same(jax.grad(mapped)(x), 2 * x)


@pytest.mark.behaviour("A6")
@pytest.mark.parametrize("collective", [lax.psum, lax.pmean])
def test_the_gradient_of_a_shared_loss_reaches_replicated_weights_and_shards(collective):
    def loss(w, x):
        return collective((w * x).sum(), "i")

    w, x = jnp.arange(3.0), jnp.arange(3.0 * N).reshape(N, 3)
    axes = {"in_axes": (None, 0), "out_axes": None}

    assert_same(
        jax.value_and_grad(pmapx.pmap(loss, "i", **axes), argnums=(0, 1))(w, x),
        jax.value_and_grad(by_vmap(loss, "i", **axes), argnums=(0, 1))(w, x),
    )


@pytest.mark.behaviour("A6")
def test_the_gradient_through_a_gathered_output():
    mapped = pmapx.pmap(lambda x: lax.all_gather(x * x, "i"), "i", out_axes=None)
    x = jnp.arange(float(N))
    w = jnp.arange(1.0, N + 1)

    assert_same(jax.grad(lambda x: (w * mapped(x)).sum())(x), 2 * w * x)


@pytest.mark.behaviour("A6")
def test_tangents_through_an_output_that_is_the_same_everywhere():
    mapped = pmapx.pmap(lambda x: lax.psum(x * x, "i"), "i", out_axes=None)
    x = jnp.arange(float(N))

    assert_same(jax.jvp(mapped, (x,), (jnp.ones(N),)), ((x * x).sum(), 2 * x.sum()))


@pytest.mark.behaviour("A6")
def test_the_gradient_of_shared_weights_that_come_back_unmapped():
    mapped = pmapx.pmap(lambda w, x: w * w, in_axes=(None, 0), out_axes=None)

    assert_same(jax.grad(mapped)(jnp.float32(3), jnp.zeros(N)), jnp.float32(6))
