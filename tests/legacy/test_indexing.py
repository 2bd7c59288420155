"""With install() on, x[i] of stacked arrays is what the original gave (F3 to F6)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmapx
from at_once import at_once
from oracle import assert_same
from program_counts import counting

N = jax.device_count()
DEVICES = jax.devices()
ROWS = np.arange(3.0 * N, dtype=np.float32).reshape(N, 3)


@pytest.fixture(autouse=True)
def installed():
    with pmapx.install():
        yield


@pytest.fixture
def x():
    return pmapx.pmap(lambda x: x)(ROWS)


INTEGERS = [0, N - 1, -1, -N, np.int32(0), np.int64(N - 1), np.uint8(0)]


@pytest.mark.behaviour("F3")
@pytest.mark.needs_devices(2)
@pytest.mark.parametrize("i", INTEGERS, ids=lambda i: f"{type(i).__name__} {i}")
def test_a_static_integer_index_returns_that_shard_on_its_device(x, i):
    row = x[i]

    assert row.devices() == {DEVICES[i]}
    assert not row.committed
    assert_same(row, ROWS[i])


@pytest.mark.behaviour("F3")
@pytest.mark.needs_devices(2)
def test_a_slice_of_length_one_stays_on_its_device(x):
    piece = x[1:2]

    assert piece.devices() == {DEVICES[1]}
    assert not piece.committed
    assert_same(piece, ROWS[1:2])


@pytest.mark.needs_devices(2)
def test_iteration_yields_shards_on_their_devices(x):
    rows = list(x)

    assert [row.devices() for row in rows] == [{device} for device in DEVICES]
    assert_same(rows, list(ROWS))


@pytest.mark.behaviour("F3")
@pytest.mark.needs_devices(2)
def test_no_program_runs_on_several_devices(x):
    x[0], x[1:2], list(x)

    with counting() as counts, jax.transfer_guard("disallow"):
        x[0], x[1:2], list(x)

    assert counts.compiled == []


OTHERS = {
    "all": np.s_[:],
    "two rows": np.s_[0:2],
    "no rows": np.s_[1:1],
    "open slice": np.s_[: N // 2],
    "stepped": np.s_[::2],
    "negative slice": np.s_[-1:],
    "ellipsis": np.s_[...],
    "new axis": np.s_[None],
    "tuple": np.s_[0, 1],
    "row and all": np.s_[0, :],
    "array": np.array([0, N - 1]),
    "mask": np.arange(N) > 0,
    "bool": True,
    "traced later": jnp.array(0),
}


@pytest.mark.parametrize("index", OTHERS.values(), ids=OTHERS.keys())
def test_every_other_index_is_jaxs(x, index):
    got = x[index]
    pmapx.uninstall()

    expected = x[index]

    assert got.sharding == expected.sharding
    assert_same(got, expected)


@pytest.mark.parametrize("i", [N, -N - 1, 1000])
def test_an_index_out_of_range_does_what_jax_does(x, i):
    got = x[i]
    pmapx.uninstall()

    assert_same(got, x[i])


@pytest.mark.parametrize(
    "make",
    [
        lambda: jnp.asarray(ROWS),
        lambda: jax.device_put(ROWS, DEVICES[-1]),
        lambda: pmapx.pmap(lambda x: x, out_axes=1)(ROWS),
        lambda: pmapx.pmap(lambda x: x)(ROWS)[:, 0],
        lambda: jnp.asarray(ROWS)[0, 0] * jnp.ones(()),
    ],
    ids=["uncommitted", "one device", "columns", "derived", "scalar"],
)
def test_other_arrays_are_indexed_as_before(make):
    x = make()
    index = 0 if x.ndim else ()
    got = x[index]
    pmapx.uninstall()

    expected = x[index]

    assert_same(got, expected)
    assert got.committed == expected.committed or len(x.devices()) > 1


def test_inside_a_trace_it_is_recorded_as_before(x):
    jaxpr = jax.make_jaxpr(lambda: x[0] * 2)()

    assert jaxpr.eqns
    assert_same(jax.jit(lambda: x[0] * 2)(), 2 * ROWS[0])
    assert_same(jax.grad(lambda s: (x[0] * s).sum())(1.0), ROWS[0].sum())
    assert_same(jax.jit(lambda x: x[0])(x), ROWS[0])


def test_indexing_a_deleted_array_raises_jaxs_error(x):
    x.delete()

    with pytest.raises(RuntimeError, match="deleted"):
        x[0]
    with pytest.raises(RuntimeError, match="deleted"):
        list(x)


def test_rows_of_different_devices_can_be_used_together(x):
    assert_same(x[0] + x[-1], ROWS[0] + ROWS[-1])
    assert_same(jnp.stack([x[i] for i in range(N)]), ROWS)
    assert_same(jnp.stack(list(x)), ROWS)


@pytest.mark.needs_devices(2)
def test_a_shard_that_was_read_survives_the_donation_of_its_array(x):
    row, piece = x[0], x[0:1]

    pmapx.pmap(lambda x: 2 * x, donate_argnums=0)(x)

    assert_same(row, ROWS[0])
    assert_same(piece, ROWS[0:1])


@pytest.mark.behaviour("F6")
def test_many_threads_index_at_once(x):
    def read(k):
        return [np.asarray(x[(k + i) % N]) for i in range(2 * N)]

    for k, rows in enumerate(at_once(read)):
        assert_same(rows, [ROWS[(k + i) % N] for i in range(2 * N)])


def test_indexing_can_be_left_out(x):
    with_ours = x[0]

    with pmapx.install(indexing=False):
        assert_same(x[0], with_ours)
        assert len(x[0].devices()) == N
