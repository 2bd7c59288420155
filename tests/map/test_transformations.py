"""A pmapped function under, over and beside the other transformations of JAX (A15)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pmapx
from oracle import assert_same, by_vmap

pytestmark = pytest.mark.behaviour("A15")

N = jax.device_count()
X = jnp.arange(3.0 * N).reshape(N, 3)
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def polynomial(x):
    """Whole numbers in, whole numbers out: any order of the arithmetic gives the same bits."""
    return x * x - lax.psum(x, "i")


def smooth(x):
    return jnp.sin(x) + lax.pmean(x * x, "i")


MAPPED = pmapx.pmap(polynomial, "i")
WANTED = by_vmap(polynomial, "i")


def test_jit_of_a_pmap():
    assert_same(jax.jit(lambda x: MAPPED(x + 1) * 2)(X), WANTED(X + 1) * 2)


def test_jit_of_two_pmaps_over_different_axes():
    columns = pmapx.pmap(lambda x: x + lax.axis_index("j"), "j", in_axes=-1, out_axes=-1)
    square = jnp.arange(float(N * N)).reshape(N, N)

    result = jax.jit(lambda x: columns(MAPPED(x)))(square)

    assert_same(result, WANTED(square) + jnp.arange(N))


def test_jit_inside_a_pmap():
    assert_same(pmapx.pmap(jax.jit(polynomial), "i")(X), WANTED(X))


def test_jit_of_a_pmap_traces_it_once():
    traces = []

    def fun(x):
        traces.append(x.shape)
        return x + 1

    compiled = jax.jit(pmapx.pmap(fun))
    compiled(X)
    compiled(X)

    assert traces == [(3,)]


def test_vmap_of_a_pmap():
    batch = jnp.stack([X, 2 * X, -X])

    assert_same(jax.vmap(MAPPED)(batch), jax.vmap(WANTED)(batch))


@pytest.mark.parametrize(("in_axis", "out_axis"), [(0, 1), (1, 0), (2, 2), (-1, -1)])
def test_vmap_of_a_pmap_over_any_axis(in_axis, out_axis):
    batch = jnp.moveaxis(jnp.stack([X, 2 * X]), 0, in_axis)

    assert_same(
        jax.vmap(MAPPED, in_axis, out_axis)(batch), jax.vmap(WANTED, in_axis, out_axis)(batch)
    )


def test_vmap_with_a_named_axis_of_a_pmap_that_sums_over_both():
    def fun(x):
        return lax.psum(x, "i") + lax.psum(x, ("v", "i")) + lax.axis_index("v")

    batch = jnp.stack([X, 2 * X])

    assert_same(
        jax.vmap(pmapx.pmap(fun, "i"), axis_name="v")(batch),
        jax.vmap(by_vmap(fun, "i"), axis_name="v")(batch),
    )


def test_vmap_inside_a_pmap():
    def fun(x):
        return jax.vmap(lambda y: lax.psum(y, "i") + lax.psum(y, ("i", "v")), axis_name="v")(x)

    assert_same(pmapx.pmap(fun, "i")(X), by_vmap(fun, "i")(X))


def test_grad_of_a_pmap():
    assert_same(jax.grad(lambda x: MAPPED(x).sum())(X), jax.grad(lambda x: WANTED(x).sum())(X))


def test_grad_inside_a_pmap():
    def fun(x):
        return jax.grad(lambda x: polynomial(x).sum())(x)

    assert_same(pmapx.pmap(fun, "i")(X), by_vmap(fun, "i")(X))


def test_value_and_grad_with_an_auxiliary_output():
    def fun(w, x):
        return (w * x).sum(), {"x": x + 1}

    axes = {"in_axes": (None, 0)}

    def loss(mapped):
        def total(w, x):
            value, aux = mapped(w, x)
            return value.sum(), aux

        return jax.value_and_grad(total, has_aux=True)(jnp.float32(2), X)

    assert_same(loss(pmapx.pmap(fun, **axes)), loss(by_vmap(fun, **axes)))


def test_second_derivatives():
    def hessian(mapped):
        return jax.hessian(lambda x: (mapped(x) ** 2).sum())(X[:, 0])

    assert_same(hessian(MAPPED), hessian(WANTED))


def test_jvp_of_a_pmap():
    tangent = jnp.ones_like(X)

    assert_same(jax.jvp(MAPPED, (X,), (tangent,)), jax.jvp(WANTED, (X,), (tangent,)))


def test_jvp_with_an_argument_that_has_no_tangent():
    def fun(x, k):
        return x * k

    k = jnp.arange(N, dtype=jnp.int32)
    no_tangent = np.zeros(N, jax.dtypes.float0)

    assert_same(
        jax.jvp(pmapx.pmap(fun), (X[:, 0], k), (X[:, 1], no_tangent)),
        jax.jvp(by_vmap(fun), (X[:, 0], k), (X[:, 1], no_tangent)),
    )


def test_linearize():
    value, push = jax.linearize(MAPPED, X)
    wanted_value, wanted_push = jax.linearize(WANTED, X)

    assert_same(value, wanted_value)
    assert_same(push(2 * X), wanted_push(2 * X))


@pytest.mark.no_context_mesh(
    "JAX takes no cotangent of another type than the output's", kind="explicit"
)
def test_vjp_pulls_back_more_than_once():
    value, pull = jax.vjp(MAPPED, X)
    wanted_value, wanted_pull = jax.vjp(WANTED, X)

    assert_same(value, wanted_value)
    assert_same(pull(X), wanted_pull(X))
    assert_same(pull(-X), wanted_pull(-X))


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.everything_saveable])
def test_remat_of_a_pmap(policy):
    remat = jax.checkpoint(pmapx.pmap(smooth, "i"), policy=policy)

    assert_same(
        jax.grad(lambda x: remat(x).sum())(X),
        jax.grad(lambda x: by_vmap(smooth, "i")(x).sum())(X),
        **CLOSE,
    )


def test_remat_inside_a_pmap():
    mapped = pmapx.pmap(jax.checkpoint(smooth), "i")

    assert_same(
        jax.grad(lambda x: mapped(x).sum())(X),
        jax.grad(lambda x: by_vmap(smooth, "i")(x).sum())(X),
        **CLOSE,
    )


@jax.custom_vjp
def three_times_the_gradient(x):
    return x * x


three_times_the_gradient.defvjp(
    lambda x: (x * x, x), lambda x, ct: (3 * 2 * x * lax.psum(ct, "i"),)
)


def test_custom_vjp_inside_a_pmap():
    mapped = pmapx.pmap(three_times_the_gradient, "i")

    assert_same(jax.grad(lambda x: mapped(x).sum())(X), 6 * X * N)


def test_custom_vjp_around_a_pmap():
    @jax.custom_vjp
    def fun(x):
        return MAPPED(x)

    fun.defvjp(lambda x: (MAPPED(x), x), lambda x, ct: (MAPPED(x) * ct,))

    assert_same(jax.grad(lambda x: fun(x).sum())(X), WANTED(X))


@jax.custom_jvp
def seven_times_the_tangent(x):
    return x + 1


seven_times_the_tangent.defjvp(lambda x, t: (x[0] + 1, 7 * t[0]))


def test_custom_jvp_inside_a_pmap():
    assert_same(
        jax.jvp(pmapx.pmap(seven_times_the_tangent), (X,), (X,)),
        (X + 1, 7 * X),
    )


def test_scan_over_a_pmap():
    def run(mapped):
        return lax.scan(lambda x, k: (mapped(x) % 7 + k, mapped(x)), X, jnp.arange(3.0))

    assert_same(run(MAPPED), run(WANTED))


def test_scan_inside_a_pmap():
    def fun(x):
        return lax.scan(lambda c, y: (c + lax.psum(y, "i"), c * 2), 0.0, x)

    assert_same(pmapx.pmap(fun, "i")(X), by_vmap(fun, "i")(X))


@pytest.mark.no_context_mesh(
    "JAX types an eager scan's results with a mesh inside", kind="explicit"
)
def test_the_gradient_of_a_scan_over_a_pmap():
    def total(mapped, x):
        return lax.scan(lambda x, _: (mapped(x), x.sum()), x, None, length=2)[1].sum()

    assert_same(jax.grad(lambda x: total(MAPPED, x))(X), jax.grad(lambda x: total(WANTED, x))(X))


@pytest.mark.parametrize("flag", [True, False])
def test_cond_over_a_pmap(flag):
    def run(mapped):
        return jax.jit(lambda flag, x: lax.cond(flag, mapped, lambda x: -x, x))(flag, X)

    assert_same(run(MAPPED), run(WANTED))


def test_cond_inside_a_pmap_takes_each_elements_own_branch():
    def fun(x):
        return lax.cond(x.sum() > 4, lambda x: x * 2, lambda x: -x, x)

    assert_same(pmapx.pmap(fun)(X), by_vmap(fun)(X))


def test_while_over_a_pmap():
    increment = pmapx.pmap(lambda x: x + 1)

    result = lax.while_loop(lambda x: x.sum() < 100 * N, increment, X)

    assert_same(result, lax.while_loop(lambda x: x.sum() < 100 * N, lambda x: x + 1, X))


def test_while_inside_a_pmap_stops_for_each_element_on_its_own():
    def fun(x):
        return lax.while_loop(lambda y: y < 10, lambda y: y + 3, x[0])

    assert_same(pmapx.pmap(fun)(X), by_vmap(fun)(X))


def test_switch_on_the_axis_index():
    def fun(x):
        branches = [lambda x, k=k: x * k for k in range(N)]
        return lax.switch(lax.axis_index("i"), branches, x)

    assert_same(pmapx.pmap(fun, "i")(X), X * jnp.arange(N)[:, None])


def test_eval_shape_says_what_comes_out_and_runs_nothing():
    shapes = jax.eval_shape(pmapx.pmap(lambda x: {"y": x[None] > 0}, out_axes=1), X)

    assert shapes["y"].shape == (1, N, 3)
    assert shapes["y"].dtype == jnp.bool_


def test_eval_shape_of_a_shape_dtype_struct():
    struct = jax.ShapeDtypeStruct((N, 3), jnp.float32)

    assert jax.eval_shape(MAPPED, struct).shape == (N, 3)


def test_make_jaxpr_shows_the_body():
    jaxpr = jax.make_jaxpr(pmapx.pmap(lambda x: jnp.tanh(lax.psum(x, "i")), "i"))(X)

    assert jaxpr.in_avals[0].shape == jaxpr.out_avals[0].shape == (N, 3)
    assert "tanh" in str(jaxpr)
    assert "psum" in str(jaxpr)


def test_a_jaxpr_of_a_pmap_can_be_evaluated():
    closed = jax.make_jaxpr(MAPPED)(X)

    (result,) = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, X)

    assert_same(result, WANTED(X))


def test_disable_jit_gives_the_same_result():
    with jax.disable_jit():
        result = pmapx.pmap(polynomial, "i")(X)

    assert_same(result, WANTED(X))


def test_disable_jit_takes_inner_and_negative_axes():
    def fun(x):
        return jax.jit(lambda y: y * 2)(x) + lax.psum(x, "i")

    with jax.disable_jit():
        result = pmapx.pmap(fun, "i", in_axes=1, out_axes=-1)(X.T)

    assert_same(result, by_vmap(fun, "i", in_axes=1, out_axes=-1)(X.T))


def test_debug_nans_raises():
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.block_until_ready(pmapx.pmap(lambda x: x / 0.0 * 0.0)(X))


def test_debug_nans_leaves_good_numbers_alone():
    with jax.debug_nans(True):
        assert_same(MAPPED(X), WANTED(X))


def test_debug_print_prints_once_for_each_element(capfd):
    @pmapx.pmap
    def fun(x):
        jax.debug.print("row {}", x[0].astype(int))
        return x

    jax.block_until_ready(fun(X))
    jax.effects_barrier()

    printed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("row")]
    assert sorted(printed) == sorted(f"row {3 * k}" for k in range(N))


def test_debug_callback_runs_on_every_element():
    seen = []

    def fun(x):
        jax.debug.callback(lambda value: seen.append(int(value)), x[0])
        return x + 1

    assert_same(pmapx.pmap(fun)(X), X + 1)
    jax.effects_barrier()
    assert sorted(seen) == [3 * k for k in range(N)]


def test_pure_callback_inside_a_pmap():
    def fun(x):
        return jax.pure_callback(
            lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x
        )

    assert_same(pmapx.pmap(fun)(X), 2 * X)


def test_io_callback_runs_on_every_element_and_feeds_the_result():
    from jax.experimental import io_callback

    seen = []

    def record(x):
        seen.append(int(x[0]))
        return np.asarray(x) + 1

    result = pmapx.pmap(lambda x: io_callback(record, jax.ShapeDtypeStruct((3,), jnp.float32), x))(
        X
    )

    assert_same(result, X + 1)
    jax.effects_barrier()
    assert sorted(seen) == [3 * k for k in range(N)]


@pytest.mark.no_context_mesh("JAX indexes no closed-over array of another mesh")
def test_a_closure_over_an_array_is_shared_by_all_elements():
    table = jnp.arange(10.0)

    assert_same(pmapx.pmap(lambda x: x + table[:3])(X), X + table[:3])


@pytest.mark.no_context_mesh(
    "JAX has no shard_map that closes over arrays of explicit axes", kind="explicit"
)
def test_a_closure_over_an_outer_tracer_is_differentiated():
    def total(w):
        return pmapx.pmap(lambda x: x * w)(X).sum()

    assert_same(jax.grad(total)(jnp.float32(3)), X.sum())
    assert_same(jax.jit(total)(jnp.float32(3)), 3 * X.sum())
    assert_same(jax.vmap(total)(jnp.arange(3.0)), jnp.arange(3.0) * X.sum())


def test_named_scope_and_named_call_reach_the_program():
    def fun(x):
        with jax.named_scope("my_scope"):
            return jnp.sin(x)

    text = pmapx.pmap(fun).lower(X).compile().as_text()

    assert "my_scope" in text


def test_no_tracer_is_leaked():
    with jax.checking_leaks():
        assert_same(pmapx.pmap(lambda x: x * 2)(X), 2 * X)
