"""Calls inside `jax.set_mesh` of any mesh, Auto or Explicit (B7)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh

import pmapx

N = jax.device_count()
X = np.arange(N, dtype=np.float32)

pytestmark = [
    pytest.mark.behaviour("B7"),
    pytest.mark.no_context_mesh("these tests set meshes of their own"),
]


def mesh_of(kind, shape, devices=None):
    devices = np.array(jax.devices() if devices is None else devices)
    names = ("m", "n")[: len(shape)]
    return Mesh(devices.reshape(shape), names, axis_types=(kind,) * len(shape))


MESHES = {
    f"{kind.name} {'x'.join(map(str, shape))}": (kind, shape)
    for kind in (AxisType.Auto, AxisType.Explicit)
    for shape in ((N,), (N // 2, 2))
    if np.prod(shape) == N
}


@pytest.fixture(params=MESHES, ids=str)
def mesh(request):
    mesh = mesh_of(*MESHES[request.param])
    with jax.set_mesh(mesh):
        yield mesh


def test_a_result_can_be_computed_with(mesh):
    result = pmapx.pmap(lambda x: 2 * x)(X)

    np.testing.assert_array_equal(result + 1, 2 * X + 1)
    np.testing.assert_array_equal(jnp.sin(result), np.asarray(jax.jit(jnp.sin)(2 * X)))
    np.testing.assert_array_equal(jax.jit(lambda x: x * x)(result), 4 * X * X)
    np.testing.assert_array_equal(jnp.sum(result), 2 * X.sum())


def test_a_result_has_its_shards_where_the_map_left_them(mesh):
    result = pmapx.pmap(lambda x: 2 * x)(X)

    assert isinstance(result.sharding, jax.sharding.NamedSharding)
    assert {shard.data.shape for shard in result.addressable_shards} == {(1,)}
    assert [shard.device for shard in result.addressable_shards] == jax.devices()


def test_results_feed_the_next_call_without_another_trace_or_move(mesh):
    step = pmapx.pmap(lambda x: x + lax.pmean(x, "i"), "i")
    x = X
    for _ in range(3):
        x = step(x)

    info = step.cache_info()
    assert (info.traces, info.compiles, info.moved) == (1, 1, ())


def test_several_axes_and_unmapped_outputs(mesh):
    def fun(x):
        return x, lax.psum(x, "i"), jax.random.key(0)

    rows, total, key = pmapx.pmap(fun, "i", out_axes=(1, None, None))(np.stack([X, X], 1))

    np.testing.assert_array_equal(rows + 1, np.stack([X, X]) + 1)
    np.testing.assert_array_equal(total * 2, np.full(2, 2 * X.sum()))
    jax.random.uniform(key)


@pytest.mark.needs_devices(4)
def test_a_pmap_met_inside_another(mesh):
    inner = pmapx.pmap(lambda x: x + lax.psum(x, "j") + lax.psum(x, ("i", "j")), "j")
    outer = pmapx.pmap(lambda x: inner(x) + lax.psum(x, "i"), "i")
    x = np.arange(float(N), dtype=np.float32).reshape(N // 2, 2)
    expected = x + x.sum(1, keepdims=True) + x.sum() + x.sum(0)

    np.testing.assert_array_equal(outer(x), expected)
    np.testing.assert_array_equal(jax.jit(outer)(x), expected)
    if len(outer(x).sharding.device_set) == N:  # Before JAX 0.10, inner maps run as a batch.
        np.testing.assert_array_equal(outer(x) + 1, expected + 1)


def test_without_jit(mesh):
    mapped = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i")

    with jax.disable_jit():
        result = mapped(X)

    np.testing.assert_array_equal(result, X + X.sum())
    np.testing.assert_array_equal(result + 1, X + X.sum() + 1)


def test_debugging_nans(mesh):
    divide = pmapx.pmap(lambda x, y: x / y)

    np.testing.assert_array_equal(divide(X, X + 1), X / (X + 1))
    with jax.debug_nans(True):
        np.testing.assert_array_equal(divide(X, X + 1) + 1, X / (X + 1) + 1)
        with pytest.raises(FloatingPointError):
            divide(X, X)


def test_nans_are_found_again_after_they_were_found(mesh):
    divide = pmapx.pmap(lambda x, y: x / y)
    jax.config.update("jax_debug_nans", True)
    try:
        divide(X, X + 1)
        for _ in range(2):
            with pytest.raises(FloatingPointError):
                divide(X, X)
    finally:
        jax.config.update("jax_debug_nans", False)


def test_one_program_serves_every_mesh():
    step = pmapx.pmap(lambda x: 2 * x)
    meshes = [mesh_of(*arguments) for arguments in MESHES.values()]
    meshes.append(mesh_of(AxisType.Explicit, (N,), jax.devices()[::-1]))

    for _ in range(3):
        np.testing.assert_array_equal(step(X), 2 * X)
        for mesh in meshes:
            with jax.set_mesh(mesh):
                np.testing.assert_array_equal(step(X) + 1, 2 * X + 1)

    assert (step.cache_info().traces, step.cache_info().compiles) == (1, 1)


@pytest.mark.needs_devices(8)
def test_shards_that_the_mesh_has_no_spec_for_are_replicated():
    nested = pmapx.pmap(pmapx.pmap(lambda x: x + 1, "j"), "i")
    x = np.arange(8, dtype=np.float32).reshape(4, 2)

    with jax.set_mesh(mesh_of(AxisType.Explicit, (8,))):
        for _ in range(2):
            result = nested(x)
            np.testing.assert_array_equal(result + 1, x + 2)

    assert result.sharding.is_fully_replicated


@pytest.mark.needs_devices(4)
def test_a_map_of_half_the_devices_of_the_mesh(mesh):
    half = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i")
    x = X[: N // 2]

    np.testing.assert_array_equal(half(x), x + x.sum())
    np.testing.assert_array_equal(jax.jit(half)(x) + 1, x + x.sum() + 1)
    y = x + x.sum()
    np.testing.assert_array_equal(half(half(x)), y + y.sum())


def test_an_input_committed_to_one_device_is_resharded(mesh):
    x = jax.device_put(jnp.arange(2.0 * N).reshape(N, 2), jax.devices()[-1])
    double = pmapx.pmap(lambda x: 2 * x)

    for _ in range(2):
        np.testing.assert_array_equal(double(x), 2 * np.asarray(x))
