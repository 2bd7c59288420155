"""Cases of arrays in a program of several processes; run by test_arrays_over_processes.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rows import ALL, HERE, LOCAL, MINE, OWN, PROCESSES, TOTAL, assert_rows

import pmapx

TREE = {"w": np.arange(6.0, dtype=np.float32).reshape(2, 3), "step": 3, "key": jax.random.key(4)}
GLOBAL = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), P("i"))


def stacked():
    """All rows as one global array, of which each process holds its own."""
    return jax.make_array_from_callback(ALL.shape, GLOBAL, lambda index: ALL[index])


def case_replicate_is_over_the_devices_of_this_process():
    state = pmapx.replicate(TREE)

    assert_rows(state["w"], np.stack([TREE["w"]] * LOCAL))
    assert state["step"].weak_type
    assert state["key"].shape == (LOCAL,)
    assert_rows(pmapx.pmap(lambda s: lax.psum(s["w"], "i"), "i")(state), TOTAL * state["w"])


def case_replicate_over_all_devices_gives_a_global_array():
    rows = pmapx.device_put_replicated(TREE["w"], jax.devices())

    assert rows.shape == (TOTAL, 2, 3)
    assert not rows.is_fully_addressable or PROCESSES == 1
    for shard in rows.addressable_shards:
        np.testing.assert_array_equal(shard.data[0], TREE["w"])


def case_shards_go_to_the_devices_of_this_process():
    assert_rows(pmapx.device_put_sharded(list(MINE), jax.local_devices()), MINE)


def case_shards_for_all_devices_give_a_global_array():
    rows = pmapx.device_put_sharded(list(ALL), jax.devices())

    assert rows.shape == ALL.shape
    for shard in rows.addressable_shards:
        np.testing.assert_array_equal(shard.data, ALL[shard.index])


def case_batch_and_prefetch():
    batch = np.repeat(MINE, 2, axis=0)

    assert_rows(pmapx.shard_batch(batch), batch.reshape(LOCAL, 2, 3))
    (item,) = pmapx.prefetch([MINE])
    assert_rows(item, MINE)


def case_unreplicate_reads_a_row_of_this_process_from_a_global_array():
    row = pmapx.unreplicate(stacked())

    assert row.devices() == {jax.local_devices()[0]}
    np.testing.assert_array_equal(row, MINE[0])
    np.testing.assert_array_equal(pmapx.to_host(stacked()), MINE[0])


def case_rows_of_this_process_can_be_read_from_a_global_array_and_no_others():
    x = stacked()

    for i in range(OWN.start, OWN.stop):
        np.testing.assert_array_equal(pmapx.local_slice(x, i), ALL[i])
    other = OWN.stop % TOTAL
    if PROCESSES > 1:
        with pytest.raises(IndexError, match=f"a process other than {HERE}"):
            pmapx.local_slice(x, other)


def case_the_old_training_loop_runs_as_installed():
    with pmapx.install():
        state = jax.device_put_replicated(jnp.zeros(3), jax.local_devices())
        step = jax.pmap(lambda s, x: s + lax.pmean(x, "i"), axis_name="i", donate_argnums=0)
        for _ in range(3):
            state = step(state, MINE)
        first = state[0]
        rows = list(state)

    np.testing.assert_allclose(first, 3 * ALL.mean(0), rtol=1e-6)
    assert [row.devices() for row in rows] == [{device} for device in jax.local_devices()]
