"""Several pmapped functions in one `jit` share its devices (I4); too large ones are traced (I6)."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import pmapx
from oracle import assert_same, by_vmap

N = jax.device_count()
X = jnp.arange(float(N))
SIZES = sorted({1, 2, 3, max(N // 2, 1), N} & set(range(1, N + 1)))


def fun(x):
    return x * x + lax.psum(x, "i") + lax.axis_index("i"), lax.ppermute(x, "i", [(0, 0)])


pmapped = pmapx.pmap(fun, "i")
expected = by_vmap(lambda x: (x * x + lax.psum(x, "i") + lax.axis_index("i"),), "i")


def value(x):
    return expected(x)[0], jnp.where(jnp.arange(len(x)) == 0, x, 0)


@pytest.mark.behaviour("I4")
@pytest.mark.parametrize("first", SIZES)
@pytest.mark.parametrize("second", SIZES)
def test_two_sizes_in_one_jit(first, second):
    both = jax.jit(lambda x: (pmapped(x[:first]), pmapped(x[:second])))

    assert_same(both(X), (value(X[:first]), value(X[:second])))


@pytest.mark.behaviour("I4")
@pytest.mark.needs_devices(2)
def test_two_device_orders_in_one_jit(devices):
    backwards = pmapx.pmap(fun, "i", devices=devices[::-1])

    assert_same(jax.jit(lambda x: (pmapped(x), backwards(x)))(X), (value(X), value(X)))


@pytest.mark.needs_devices(2)
def test_disjoint_devices_in_one_jit(devices):
    h = N // 2
    low, high = (pmapx.pmap(fun, "i", devices=half) for half in (devices[:h], devices[h : 2 * h]))
    y = X[: 2 * h]

    result = jax.jit(lambda x: (low(x[:h]), high(x[h:])))(y)

    assert_same(result, (value(y[:h]), value(y[h:])))


@pytest.mark.no_context_mesh("JAX slices no sharded dimension of explicit axes", kind="explicit")
@pytest.mark.needs_devices(4)
def test_a_chain_of_sizes_in_one_jit():
    def chain(x):
        return pmapped(jnp.concatenate(pmapped(pmapped(x)[0][: N // 2])))[0]

    def wanted(x):
        return value(jnp.concatenate(value(value(x)[0][: N // 2])))[0]

    assert_same(jax.jit(chain)(X), wanted(X))


@pytest.mark.no_context_mesh("JAX slices no sharded dimension of explicit axes", kind="explicit")
@pytest.mark.needs_devices(4)
def test_sizes_that_a_scan_and_an_inner_jit_hold():
    half = jax.jit(lambda x: pmapped(x[: N // 2])[0])

    def chain(x):
        x = pmapped(x)[0]
        return half(x), lax.scan(lambda c, x: (c, pmapped(x)[0]), 0, x.reshape(2, -1))[1]

    y = value(X)[0]
    halves = jnp.stack([value(part)[0] for part in y.reshape(2, -1)])
    assert_same(jax.jit(chain)(X), (value(y[: N // 2])[0], halves))


@pytest.mark.needs_devices(4)
def test_the_gradient_through_two_sizes_in_one_jit():
    def loss(mapped, x):
        return (mapped(x)[0].sum() * mapped(x[: N // 2])[0]).sum()

    assert_same(
        jax.jit(jax.grad(lambda x: loss(pmapped, x)))(X), jax.grad(lambda x: loss(expected, x))(X)
    )


@pytest.mark.no_context_mesh("JAX slices no sharded dimension of explicit axes", kind="explicit")
@pytest.mark.needs_devices(2)
def test_a_smaller_map_in_a_jit_of_arrays_on_all_devices():
    placed = pmapx.pmap(lambda x: x)(X)

    assert_same(jax.jit(lambda x: pmapped(x[: N // 2]))(placed), value(X[: N // 2]))


@pytest.mark.needs_devices(2)
def test_nested_maps_beside_a_flat_one_in_one_jit():
    nested = pmapx.pmap(lambda x: pmapx.pmap(lambda y: y + lax.psum(y, ("i", "j")), "j")(x), "i")
    x = X[: N // 2 * 2].reshape(-1, 2)

    flat_first = jax.jit(lambda x: (pmapped(x[:, 0])[0], nested(x)))(x)
    nested_first = jax.jit(lambda x: (nested(x), pmapped(x[:, 0])[0]))(x)

    assert_same(flat_first, (value(x[:, 0])[0], x + x.sum()))
    assert_same(nested_first, (x + x.sum(), value(x[:, 0])[0]))


@pytest.mark.no_context_mesh("a jit has the devices of the mesh")
def test_one_map_in_a_jit_has_the_devices_of_its_own_call():
    alone, in_jit = pmapped(X[:1])[0], jax.jit(pmapped)(X[:1])[0]

    assert in_jit.sharding.is_equivalent_to(alone.sharding, 1)


@pytest.mark.no_context_mesh("a jit has the devices of the mesh")
@pytest.mark.needs_devices(2)
def test_traces_do_not_share_their_devices():
    jax.jit(pmapped)(X)
    smaller = jax.jit(pmapped)(X[: N // 2])[0]

    assert len(smaller.sharding.device_set) == N // 2


def large(*shape):
    return jnp.ones((2 * N, *shape))


@pytest.mark.behaviour("I6")
@pytest.mark.parametrize(
    "trace",
    [
        jax.eval_shape,
        lambda f, x: jax.make_jaxpr(f, return_shape=True)(x)[1],
        lambda f, x: jax.jit(f).trace(x).out_info,
        lambda f, x: jax.eval_shape(lambda x: f(x), x),
        lambda f, x: f.eval_shape(x),
        lambda f, x: f.trace(x).out_info,
    ],
    ids=["eval_shape", "make_jaxpr", "jit trace", "of a lambda", "own eval_shape", "own trace"],
)
def test_a_map_larger_than_the_devices_is_traced(trace):
    shape, _ = trace(pmapped, large(3))

    assert shape.shape == (2 * N, 3)


def test_a_map_larger_than_the_devices_is_traced_under_other_transformations():
    def loss(x):
        return pmapped(x)[0].sum()

    assert jax.eval_shape(jax.grad(loss), large()).shape == (2 * N,)
    assert jax.eval_shape(jax.jit(jax.vmap(pmapped)), jnp.ones((3, 2 * N)))[0].shape == (3, 2 * N)
    assert jax.eval_shape(jax.hessian(loss), large()).shape == (2 * N, 2 * N)


@pytest.mark.parametrize(
    "run",
    [
        lambda f, x: f(x),
        lambda f, x: jax.jit(f)(x),
        lambda f, x: jax.jit(f).lower(x),
        lambda f, x: jax.grad(lambda x: f(x)[0].sum())(x),
        lambda f, x: jax.jit(jax.grad(lambda x: f(x)[0].sum()))(x),
        lambda f, x: jax.vmap(f)(x[None]),
        lambda f, x: f.lower(x),
    ],
    ids=["call", "jit", "lower", "grad", "jit of grad", "vmap", "own lower"],
)
def test_a_map_larger_than_the_devices_is_refused_where_it_would_run(run):
    with pytest.raises(pmapx.errors.NotEnoughDevices, match=f"requires {2 * N} logical devices"):
        run(pmapped, large())


def test_nested_maps_larger_than_the_devices_are_traced_and_not_run():
    nested = pmapx.pmap(pmapx.pmap(lambda x: x + lax.psum(x, ("i", "j")), "j"), "i")
    x = jnp.ones((N, 2))

    assert jax.eval_shape(nested, x).shape == (N, 2)
    assert jax.eval_shape(lambda x: nested(x), x).shape == (N, 2)
    with pytest.raises(pmapx.errors.NestingTooLarge):
        jax.jit(nested)(x)


def test_static_arguments_of_a_map_larger_than_the_devices():
    scaled = pmapx.pmap(lambda x, k: k * x, static_broadcasted_argnums=1)

    assert scaled.eval_shape(large(), 3).shape == (2 * N,)
    assert jax.eval_shape(lambda x: scaled(x, 3), large()).shape == (2 * N,)
