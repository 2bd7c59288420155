"""Drawn functions, trees, axes, devices, placements and transformations, against `jax.vmap`."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume

import pmapx
from drawn_programs import AXIS, cases
from oracle import assert_same, by_vmap
from property_tests import property_test

N = jax.device_count()


def both(case, **options):
    """The drawn function mapped by pmapx and by `jax.vmap`, with the drawn axes."""
    args, kwargs = case.numpy_args()
    size = {"axis_size": case.size} if case.says_size else {}
    rows = jax.eval_shape(
        by_vmap(case.fun, AXIS, in_axes=case.in_axes, axis_size=case.size), *args, **kwargs
    )
    out_axes = case.out_axes([len(x.shape) - 1 for x in jax.tree.leaves(rows)])
    axes = {"in_axes": case.in_axes, "out_axes": out_axes}
    options = {"devices": case.devices, **options}
    mapped = pmapx.pmap(case.fun, AXIS, **axes, **size, **options)
    wanted = by_vmap(case.fun, AXIS, **axes, axis_size=case.size)
    return mapped, wanted, (args, kwargs)


def compare(case, actual, expected):
    tolerance = {} if case.is_exact else {"rtol": 2e-5, "atol": 2e-5}
    assert_same(actual, expected, **tolerance)


@property_test(45, case=cases())
def test_a_call_computes_what_vmap_computes(case):
    mapped, wanted, (args, kwargs) = both(case)
    placed_args, placed_kwargs = case.placed((args, kwargs))

    result = mapped(*placed_args, **placed_kwargs)

    compare(case, result, jax.jit(wanted)(*args, **kwargs))
    devices = set(case.devices or jax.devices()[: case.size])
    assert all(x.sharding.device_set == devices for x in jax.tree.leaves(result))


def gradient(fun):
    """What a cotangent of 1, 2, 3, 1, ... in every float output pulls back to the float inputs."""

    def of(*args, **kwargs):
        leaves, tree = jax.tree.flatten((args, kwargs))
        floats = [k for k, x in enumerate(leaves) if x.dtype == jnp.float32]

        def of_floats(chosen):
            replaced = dict(zip(floats, chosen, strict=True))
            full = [replaced.get(k, x) for k, x in enumerate(leaves)]
            args, kwargs = jax.tree.unflatten(tree, full)
            return [x for x in jax.tree.leaves(fun(*args, **kwargs)) if x.dtype == jnp.float32]

        values, pull_back = jax.vjp(of_floats, [leaves[k] for k in floats])
        return pull_back([one_two_three(x.shape) for x in values])

    return of


def one_two_three(shape):
    return (np.arange(np.prod(shape)).reshape(shape) % 3 + 1).astype(np.float32)


def tangents(fun):
    """Values and tangents of the float outputs, the float inputs having the tangent 1, 2, 3, ..."""

    def of(*args, **kwargs):
        def tangent(x):
            if x.dtype == jnp.float32:
                return one_two_three(x.shape)
            return np.zeros(x.shape, jax.dtypes.float0)

        return jax.jvp(
            lambda args, kwargs: fun(*args, **kwargs),
            (args, kwargs),
            jax.tree.map(tangent, (args, kwargs)),
        )

    return of


def over_a_batch(fun):
    """The map under `jax.vmap`, for arguments that are stacked twice."""
    return lambda args, kwargs: jax.vmap(lambda args, kwargs: fun(*args, **kwargs))(args, kwargs)


def in_a_scan(fun):
    """The map in the body of a scan, for arguments that are stacked twice."""

    def of(args, kwargs):
        return jax.lax.scan(lambda c, xs: (c + 1, fun(*xs[0], **xs[1])), 0, (args, kwargs))

    return of


SMOOTH = {
    "grad": gradient,
    "grad of remat": lambda fun: gradient(jax.checkpoint(fun)),
    "jvp": tangents,
    "grad of jit": lambda fun: gradient(jax.jit(fun)),
}
STACKED = {"vmap": over_a_batch, "scan": in_a_scan}


@property_test(20, case=cases(differentiable=True), transform=st.sampled_from(sorted(SMOOTH)))
def test_derivatives_are_those_of_vmap(case, transform):
    names = {operation.name for output in case.outputs for operation in output.operations}
    assume(transform != "jvp" or "custom gradient" not in names)  # JAX refuses that of anyone.
    mapped, wanted, (args, kwargs) = both(case, devices=None)

    actual = SMOOTH[transform](mapped)(*args, **kwargs)

    compare(case, actual, jax.jit(SMOOTH[transform](wanted))(*args, **kwargs))


@property_test(5, case=cases())
def test_a_map_under_jit_computes_what_vmap_computes(case):
    mapped, wanted, (args, kwargs) = both(case, devices=None)

    compare(case, jax.jit(mapped)(*args, **kwargs), jax.jit(wanted)(*args, **kwargs))


@property_test(10, case=cases(), transform=st.sampled_from(sorted(STACKED)))
def test_a_map_under_vmap_or_scan_computes_what_vmap_does(case, transform):
    mapped, wanted, (args, kwargs) = both(case, devices=None)
    stacked = jax.tree.map(lambda x: np.stack([x, x]), (args, kwargs))

    actual = STACKED[transform](mapped)(*stacked)

    compare(case, actual, jax.jit(STACKED[transform](wanted))(*stacked))


@property_test(5, case=cases(differentiable=True))
def test_derivatives_of_a_call_with_placed_inputs(case):
    mapped, wanted, (args, kwargs) = both(case)
    # JAX itself has no zero cotangent for an unused input on an Explicit mesh.
    places = [place.removesuffix(" explicitly") for place in case.places]
    placed_args, placed_kwargs = case.placed((args, kwargs), places=places)

    actual = gradient(mapped)(*placed_args, **placed_kwargs)

    compare(case, actual, jax.jit(gradient(wanted))(*args, **kwargs))


@pytest.mark.filterwarnings("ignore::pmapx.PmapxWarning")
@property_test(10, case=cases(max_size=3 * N))
def test_an_oversubscribed_call_computes_what_vmap_computes(case):
    mapped, wanted, (args, kwargs) = both(case, devices=None, oversubscribe=True)

    compare(case, mapped(*args, **kwargs), jax.jit(wanted)(*args, **kwargs))


@property_test(5, case=cases(max_size=max(1, N // 2)), outer=st.integers(1, min(2, N)))
def test_a_nested_call_computes_what_vmap_computes(case, outer):
    mapped, wanted, (args, kwargs) = both(case, devices=None)
    args, kwargs = jax.tree.map(lambda x: jnp.stack([x] * outer), (args, kwargs))

    actual = pmapx.pmap(mapped, "outer")(*args, **kwargs)

    compare(case, actual, jax.jit(by_vmap(wanted, "outer"))(*args, **kwargs))
