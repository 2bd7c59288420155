"""Rows are read where they lie, without communication (F3, F4, F6)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx
from at_once import at_once
from oracle import assert_same
from program_counts import counting

N = jax.device_count()
DEVICES = jax.devices()
ROWS = np.arange(3.0 * N, dtype=np.float32).reshape(N, 3)


TWO_AXES = Mesh(np.array(DEVICES).reshape(-1, min(N, 2)), ("a", "b"))

LAYOUTS = {
    "pmapped": lambda: pmapx.pmap(lambda x: x)(ROWS),
    "numpy": lambda: ROWS,
    "one device": lambda: jax.device_put(ROWS, DEVICES[-1]),
    "uncommitted": lambda: jnp.asarray(ROWS),
    "everywhere": lambda: jax.device_put(ROWS, NamedSharding(Mesh(np.array(DEVICES), "i"), P())),
    "columns": lambda: jax.device_put(
        np.tile(ROWS, N), NamedSharding(Mesh(np.array(DEVICES), "i"), P(None, "i"))
    ),
    "two rows a device": lambda: jax.device_put(
        np.repeat(ROWS, 2, axis=0), NamedSharding(Mesh(np.array(DEVICES), "i"), P("i"))
    ),
    "devices reversed": lambda: jax.device_put(
        ROWS, NamedSharding(Mesh(np.array(DEVICES[::-1]), "i"), P("i"))
    ),
    "rows and columns": lambda: jax.device_put(
        np.tile(ROWS, N), NamedSharding(TWO_AXES, P("b", "a"))
    ),
    "no names": lambda: jax.jit(lambda x: x + 0)(pmapx.pmap(lambda x: x)(ROWS)),
}


@pytest.mark.behaviour("F6")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("i", [0, N // 2, -1])
def test_one_shard_is_read_from_any_sharding(layout, i):
    x = LAYOUTS[layout]()

    assert_same(np.asarray(pmapx.local_slice(x, i)), np.asarray(x)[i])


@pytest.mark.behaviour("F3")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_unreplicate_and_to_host_read_the_first_row(layout):
    x = LAYOUTS[layout]()

    assert_same(np.asarray(pmapx.unreplicate(x)), np.asarray(x)[0])
    host = pmapx.to_host(x)
    assert isinstance(host, np.ndarray)
    assert_same(host, np.asarray(x)[0])


@pytest.mark.behaviour("F3")
def test_a_shard_stays_on_its_device_and_combines_with_shards_of_other_devices():
    x = pmapx.pmap(lambda x: 2 * x)(ROWS)

    rows = [pmapx.local_slice(x, i) for i in range(N)]

    assert [row.devices() for row in rows] == [{device} for device in DEVICES]
    assert not any(row.committed for row in rows)
    assert_same(sum(rows), 2 * ROWS.sum(0))


@pytest.mark.behaviour("F3")
def test_unreplicate_runs_no_program_on_several_devices():
    x = pmapx.replicate({"w": np.ones((16, 16), np.float32), "b": np.ones(3, np.float32)})
    pmapx.unreplicate(x)

    with counting() as counts, jax.transfer_guard("disallow"):
        pmapx.unreplicate(x)

    assert counts.traced == counts.compiled == []


@pytest.mark.behaviour("F4")
def test_a_tree_of_many_leaves_compiles_once_for_each_shape():
    shapes = [(2,), (3, 1), ()]
    state = pmapx.replicate([np.ones(shapes[k % 3], np.float32) for k in range(60)])

    with counting() as counts:
        rows = pmapx.unreplicate(state)

    assert len(rows) == 60
    assert len(counts.compiled) <= 3


def test_rows_keep_type_weakness_and_keys():
    state = pmapx.replicate(
        {"step": 3, "key": jax.random.key(5), "half": jnp.ones(2, jnp.bfloat16)}
    )

    row = pmapx.unreplicate(state)

    assert row["step"].weak_type
    assert_same(row["key"], jax.random.key(5))
    assert row["half"].dtype == jnp.bfloat16
    host = pmapx.to_host(state)
    assert_same(host["key"], jax.random.key(5))
    assert host["half"].dtype == jnp.bfloat16


def test_replicate_then_unreplicate_gives_the_tree_back():
    tree = {"a": np.arange(4, dtype=np.int32), "b": [jnp.ones((2, 2)), (jnp.zeros(()),)], "c": None}

    assert_same(pmapx.unreplicate(pmapx.replicate(tree)), tree)


@pytest.mark.needs_devices(4)
def test_a_slice_of_a_nested_pmap_output_stays_sharded_over_its_devices():
    nested = pmapx.pmap(pmapx.pmap(lambda x: x + 1, "b"), "a")(np.zeros((N // 2, 2, 3)))

    row = pmapx.local_slice(nested, 1)

    assert row.devices() == set(DEVICES[2:4])
    assert_same(row, np.ones((2, 3), np.float32))
    assert_same(pmapx.to_host(nested), np.ones((2, 3), np.float32))


def test_the_source_may_be_donated_after():
    x = pmapx.replicate(np.ones(5, np.float32))
    row, host = pmapx.unreplicate(x), np.array(pmapx.to_host(x))

    pmapx.pmap(lambda x: x * 2, donate_argnums=0)(x)

    assert_same(row, np.ones(5, np.float32))
    assert_same(host, np.ones(5, np.float32))


@pytest.mark.behaviour("F6")
def test_many_threads_read_shards_at_once():
    x = pmapx.pmap(lambda x: x + 1)(ROWS)

    def read(k):
        return [np.asarray(pmapx.local_slice(x, (k + i) % N)) for i in range(2 * N)]

    for k, rows in enumerate(at_once(read)):
        assert_same(rows, [ROWS[(k + i) % N] + 1 for i in range(2 * N)])
