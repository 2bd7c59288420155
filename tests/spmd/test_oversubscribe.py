"""More map elements than devices (A10): refused, or shared out with `oversubscribe=True`."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pmapx
from collective_models import grouped_cases, ungrouped_cases
from oracle import assert_same, by_vmap

pytestmark = pytest.mark.behaviour("A10")

N = jax.device_count()
DEVICE_COUNTS = sorted({1, 2, N} & set(range(1, N + 1)))
UNGROUPED = ungrouped_cases(2 * N)
GROUPED = grouped_cases(2 * N)

over = functools.partial(pmapx.pmap, oversubscribe=True)


def rows(*shape):
    return jnp.arange(float(np.prod(shape))).reshape(shape)


def test_it_is_refused_unless_asked_for():
    with pytest.raises(ValueError, match=f"requires {2 * N} logical devices") as raised:
        pmapx.pmap(lambda x: x)(rows(2 * N))

    assert "oversubscribe=True" in str(raised.value)


@pytest.mark.parametrize("device_count", DEVICE_COUNTS)
@pytest.mark.parametrize("per_device", [1, 2, 4])
def test_every_device_takes_its_share(device_count, per_device, devices):
    n = device_count * per_device

    def fun(x):
        return x * lax.axis_index("i") + lax.psum(x, "i")

    result = over(fun, "i", devices=devices[:device_count])(rows(n, 3))

    assert result.sharding.device_set == set(devices[:device_count])
    assert {shard.data.shape for shard in result.addressable_shards} == {(per_device, 3)}
    assert_same(result, by_vmap(fun, "i")(rows(n, 3)))


@pytest.mark.parametrize("size", range(1, 6))
def test_one_device_behaves_as_vmap_for_any_size(size, devices):
    def fun(x):
        return lax.all_gather(x, "i"), lax.pmean(x, "i"), lax.axis_index("i"), lax.axis_size("i")

    assert_same(over(fun, "i", devices=devices[:1])(rows(size)), by_vmap(fun, "i")(rows(size)))


@pytest.mark.parametrize("case", UNGROUPED + GROUPED, ids=str)
def test_a_collective_spans_the_elements_not_the_devices(case):
    x = case.rows(2 * N)

    assert_same(over(case.call, "i")(x), case.model(x))


@pytest.mark.parametrize("case", [c for c in UNGROUPED + GROUPED if c.is_linear], ids=str)
def test_the_gradient_of_a_collective_spans_the_elements(case):
    x = case.rows(2 * N)
    cotangent = 2 * case.model(x)

    _, pull_back = jax.vjp(over(case.call, "i"), x)

    assert_same(pull_back(cotangent), jax.linear_transpose(case.model, x)(cotangent))


def test_axes_may_be_inner_negative_or_none():
    def fun(x, w, y):
        return x * w + y, lax.psum(x, "i")

    axes = {"in_axes": (1, None, -1), "out_axes": (-1, None)}
    args = (rows(3, 2 * N), rows(3), rows(2 * N))

    assert_same(over(fun, "i", **axes)(*args), by_vmap(fun, "i", **axes)(*args))


def test_trees_keywords_and_keys_are_shared_out_too():
    def fun(tree, *, key):
        return {"x": tree["x"] + jax.random.uniform(key), "none": tree["none"]}, key

    args = {"x": rows(2 * N), "none": None}
    keys = jax.random.split(jax.random.key(0), 2 * N)

    assert_same(over(fun)(args, key=keys), by_vmap(fun)(args, key=keys))


def test_axis_size_alone_may_exceed_the_devices():
    result = over(lambda: lax.psum(lax.axis_index("i"), "i"), "i", axis_size=3 * N)()

    np.testing.assert_array_equal(result, np.full(3 * N, sum(range(3 * N))))


def test_an_axis_that_fits_is_mapped_as_usual(devices):
    result = over(lambda x: lax.psum(x, "i"), "i")(rows(N))

    assert_same(result, jnp.full(N, rows(N).sum()))
    assert {shard.data.shape for shard in result.addressable_shards} == {(1,)}


def test_one_function_serves_sizes_that_fit_and_sizes_that_do_not():
    total = over(lambda x: lax.psum(x, "i"), "i")

    for size in [N, 2 * N, 1, 4 * N, N]:
        assert_same(total(rows(size)), jnp.full(size, rows(size).sum()))


@pytest.mark.needs_devices(2)
@pytest.mark.parametrize(
    ("size", "used"),
    {2: [(3, 1), (5, 1)], 8: [(9, 3), (10, 5), (11, 1), (12, 6), (20, 5)]}.get(N, []),
)
def test_a_size_that_divides_badly_uses_the_largest_count_that_divides_it(size, used, devices):
    def fun(x):
        return x + lax.psum(x, "i") + lax.axis_index("i")

    with pytest.warns(pmapx.PmapxWarning) as warned:
        result = over(fun, "i")(rows(size))

    assert [w.message.code for w in warned] == ["PMX904"]
    assert str(size) in str(warned[0].message)
    assert str(used) in str(warned[0].message)
    assert result.sharding.device_set == set(devices[:used])
    assert_same(result, by_vmap(fun, "i")(rows(size)))


@pytest.mark.needs_devices(2)
def test_a_size_that_divides_badly_is_mentioned_once():
    negate = over(lambda x: -x)

    with pytest.warns(pmapx.PmapxWarning, match="PMX904"):
        negate(rows(N + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(negate(rows(N + 1)), -rows(N + 1))


@pytest.mark.no_context_mesh("its own array is typed with another mesh", kind="explicit")
def test_placed_inputs_are_not_moved(devices):
    sharding = jax.sharding.NamedSharding(
        jax.sharding.Mesh(np.array(devices), ("rows",)), jax.sharding.PartitionSpec("rows")
    )
    x = jax.device_put(rows(2 * N, 3), sharding)
    double = over(lambda x: 2 * x)
    double(x)

    with jax.transfer_guard("disallow"):
        result = jax.block_until_ready(double(x))

    assert double.cache_info().moved == ()
    assert_same(result, 2 * x)


@pytest.mark.no_context_mesh("jnp replicates the first input over the mesh")
def test_its_own_results_fit_its_inputs():
    step = over(lambda x: x + lax.pmax(x, "i"), "i")
    x = step(step(rows(2 * N)))

    assert step.cache_info().traces == step.cache_info().compiles == 1
    assert step.cache_info().moved == ()
    wanted = by_vmap(lambda x: x + lax.pmax(x, "i"), "i")
    assert_same(x, wanted(wanted(rows(2 * N))))


@pytest.mark.parametrize("transform", [jax.jit, jax.checkpoint, jax.vmap], ids=lambda t: t.__name__)
def test_it_goes_under_other_transformations(transform):
    def fun(x):
        return x * x + lax.psum(x, "i")

    x = rows(2, 2 * N) if transform is jax.vmap else rows(2 * N)

    assert_same(transform(over(fun, "i"))(x), transform(by_vmap(fun, "i"))(x))


def test_training_on_one_device_equals_training_on_all(devices):
    x = rows(2 * N, 4) / (8 * N)

    def step(w, x):
        return w - 0.1 * lax.pmean(jax.grad(lambda w: ((w * x - 2 * x) ** 2).mean())(w), "i")

    def train(mapped):
        w = jnp.zeros(2 * N)
        for _ in range(3):
            w = mapped(w, x)
        return np.asarray(w)

    alone = train(over(step, "i", devices=devices[:1]))

    np.testing.assert_allclose(train(over(step, "i")), alone, rtol=1e-5)


def test_collectives_inside_control_flow():
    def fun(x):
        x, _ = lax.scan(lambda c, _: (c + lax.psum(c, "i") % 5, None), x, None, length=3)
        return lax.cond(x > 3, lambda x: x * 2, lambda x: -x, x)

    assert_same(over(fun, "i")(rows(2 * N)), by_vmap(fun, "i")(rows(2 * N)))


@pytest.mark.behaviour("A10")
@pytest.mark.no_context_mesh("lax.pcast asserts that it is over an axis of the mesh around")
@pytest.mark.skipif(not hasattr(lax, "pcast"), reason="lax.pcast is newer than this JAX")
@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit, lambda f: jax.grad(lambda x: f(x).sum())]
)
def test_pcast_changes_no_value(transform):
    def cast(x):
        return lax.psum(lax.pcast(x * x, "i", to="varying"), "i") + lax.pcast(
            1.0, "i", to="varying"
        )

    expected = transform(by_vmap(lambda x: lax.psum(x * x, "i") + 1, "i"))(rows(2 * N))

    assert_same(transform(over(cast, "i"))(rows(2 * N)), expected)
