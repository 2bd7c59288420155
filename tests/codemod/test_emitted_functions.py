"""The functions that a migrated file is given: each is imported and run."""

import jax
import numpy as np
import pytest

from pmapx._src.emitted import (
    functions,
    nested_rows,
    placing,
    process_rows,
    rows,
    shards,
    simple_rows,
)
from pmapx._src.emitted.functions import Manner

N = jax.device_count()
ROWS = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
MESH = jax.sharding.Mesh(jax.devices(), ("i",))


def total(x):
    return x - jax.lax.psum(x, "i")


def test_host_local_shards_are_mapped():
    f = shards.map_own_rows(lambda x: total(x[0])[None], MESH, jax.P("i"), jax.P("i"))
    np.testing.assert_array_equal(f(ROWS), ROWS - ROWS.sum(0))


@pytest.mark.parametrize("module", [rows, simple_rows, nested_rows], ids=lambda m: m.__name__)
def test_rows_are_mapped(module):
    f = jax.jit(module.one_row_each(total, axis_name="i"))
    np.testing.assert_array_equal(f(ROWS), ROWS - ROWS.sum(0))


@pytest.mark.parametrize("module", [rows, process_rows], ids=lambda m: m.__name__)
def test_rows_are_mapped_with_the_options_of_pmap(module):
    f = module.map_rows(
        lambda x, n: total(x) * n, "i", in_axes=(-1, None), static_broadcasted_argnums=1
    )
    np.testing.assert_array_equal(f(ROWS.T, 2), 2 * (ROWS - ROWS.sum(0)))


def test_the_same_function_is_mapped_once():
    assert rows.kept_one_row_each(total, axis_name="i") is rows.kept_one_row_each(
        total, axis_name="i"
    )


@pytest.mark.needs_devices(4)
def test_nested_maps_share_a_mesh():
    inner = nested_rows.one_row_each(lambda x: jax.lax.psum(x, ("i", "j")), axis_name="j")
    f = jax.jit(nested_rows.one_row_each(inner, axis_name="i"))
    x = np.arange(4.0, dtype=np.float32).reshape(2, 2)
    np.testing.assert_array_equal(f(x), np.full((2, 2), x.sum()))


def test_a_shard_is_put_on_each_device():
    placed = placing.device_put_sharded(list(ROWS), jax.devices())
    assert [shard.device for shard in placed.addressable_shards] == jax.devices()
    np.testing.assert_array_equal(placed, ROWS)
    assert placing.device_put_replicated(1.0, jax.devices()).tolist() == [1.0] * N
    assert placing.replicate_rows({"x": 1})["x"].tolist() == [1] * N


def test_every_function_is_found_in_each_manner():
    assert len(functions.names()) == 11
    for manner in Manner:
        for name in functions.names():
            found = functions.find(name, manner)
            compile(found.text, name, "exec")
            assert found.needs <= set(functions.names())
