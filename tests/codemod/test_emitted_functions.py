"""The functions that a migrated file is given: each is imported and run."""

import jax
import numpy as np
import pytest

from pmapx._src.emitted import (
    device_map,
    functions,
    leading_map,
    leading_process_map,
    nested_map,
    placing,
    process_map,
    static_process_map,
)
from pmapx._src.emitted.functions import Manner

N = jax.device_count()
SHARDS = np.arange(N * 3, dtype=np.float32).reshape(N, 3)


def total(x):
    return x - jax.lax.psum(x, "i")


@pytest.mark.parametrize("module", [device_map, nested_map], ids=lambda m: m.__name__)
def test_shards_are_mapped(module, monkeypatch):
    monkeypatch.setattr(device_map, "over_mesh", module.over_mesh)
    f = jax.jit(device_map.on_each_device(total, axis_name="i"))
    np.testing.assert_array_equal(f(SHARDS), SHARDS - SHARDS.sum(0))


@pytest.mark.parametrize("module", [static_process_map, process_map], ids=lambda m: m.__name__)
def test_a_static_argument_is_no_array_and_traces_once_a_value(module):
    traced = []

    def scaled(x, n, *, y):
        traced.append(n)
        return total(x) * n + y

    f = module.map_over_devices(scaled, "i", static_broadcasted_argnums=1, donate_argnums=(0,))
    for n in (2, 3, 2):
        expected = n * (SHARDS - SHARDS.sum(0)) + SHARDS
        np.testing.assert_array_equal(f(jax.numpy.array(SHARDS), n, y=SHARDS), expected)
    assert traced == [2, 3]


@pytest.mark.parametrize("module", [device_map, process_map], ids=lambda m: m.__name__)
def test_shards_are_mapped_with_the_options_of_pmap(module):
    f = module.map_over_devices(
        lambda x, n: total(x) * n, "i", in_axes=(-1, None), static_broadcasted_argnums=1
    )
    np.testing.assert_array_equal(f(SHARDS.T, 2), 2 * (SHARDS - SHARDS.sum(0)))


@pytest.mark.parametrize(
    "module",
    [device_map, process_map, leading_map, leading_process_map, static_process_map],
    ids=lambda m: m.__name__.rpartition(".")[2],
)
def test_parts_are_sharded_or_replicated(module):
    f = module.map_over_devices(
        lambda tree, n: (total(tree[0]) * n, {"sum": jax.lax.psum(tree[1], "i")}),
        "i",
        in_axes=((0, None), None),
        out_axes=(0, None),
    )
    shards, sums = f((SHARDS, np.float32(1)), np.float32(2))
    np.testing.assert_array_equal(shards, 2 * (SHARDS - SHARDS.sum(0)))
    assert (sums["sum"].shape, float(sums["sum"])) == ((), N)


@pytest.mark.parametrize("module", [leading_map, leading_process_map], ids=lambda m: m.__name__)
def test_the_short_function_maps_the_same_function_once(module):
    assert module.map_over_devices(total, "i") is module.map_over_devices(total, "i")


def test_the_same_function_is_mapped_once():
    first, second = (device_map.mapped_once(total, axis_name="i") for _ in range(2))
    assert first is second


@pytest.mark.needs_devices(4)
def test_nested_maps_share_a_mesh(monkeypatch):
    monkeypatch.setattr(device_map, "over_mesh", nested_map.over_mesh)
    inner = device_map.on_each_device(lambda x: jax.lax.psum(x, ("i", "j")), axis_name="j")
    f = jax.jit(device_map.on_each_device(inner, axis_name="i"))
    x = np.arange(4.0, dtype=np.float32).reshape(2, 2)
    np.testing.assert_array_equal(f(x), np.full((2, 2), x.sum()))
    unnamed = device_map.on_each_device(device_map.on_each_device(lambda x: x * 2))
    np.testing.assert_array_equal(jax.jit(unnamed)(x), x * 2)


def test_a_shard_is_put_on_each_device():
    placed = placing.device_put_sharded(list(SHARDS), jax.devices())
    assert [shard.device for shard in placed.addressable_shards] == jax.devices()
    np.testing.assert_array_equal(placed, SHARDS)
    assert placing.device_put_replicated(1.0, jax.devices()).tolist() == [1.0] * N
    assert placing.replicate_over_devices({"x": 1})["x"].tolist() == [1] * N


def test_every_function_is_found_in_each_manner():
    assert len(functions.names()) == 13
    for manner in Manner:
        for name in functions.names():
            found = functions.find(name, manner)
            compile(found.text, name, "exec")
            assert found.needs <= set(functions.names())
