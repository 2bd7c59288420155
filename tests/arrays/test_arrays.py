"""Arrays with one row a device are put straight where they go (F1, F2)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx
from oracle import assert_same
from program_counts import counting

N = jax.device_count()
DEVICES = jax.devices()


def tree():
    """Leaves of every kind, from every place."""
    over_all = NamedSharding(Mesh(np.array(DEVICES), ("q",)), P("q"))
    return {
        "numpy": np.arange(6, dtype=np.float32).reshape(2, 3),
        "double": np.arange(3.0),
        "wrongly strided": np.arange(12, dtype=np.int32).reshape(3, 4).T,
        "empty": np.zeros((0, 2), np.float32),
        "number": np.float32(2),
        "bool": True,
        "half": jnp.ones(3, jnp.bfloat16),
        "uncommitted": jnp.arange(4),
        "committed": jax.device_put(jnp.arange(4.0), DEVICES[-1]),
        "split": jax.device_put(jnp.arange(float(N)), over_all),
        "everywhere": jax.device_put(jnp.ones(2), NamedSharding(over_all.mesh, P())),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(1), 3),
        "nothing": None,
        "pair": (jnp.zeros(()), [np.ones(1)]),
    }


def assert_row_a_device(x, devices):
    assert len(x.addressable_shards) == len(devices)
    for shard in x.addressable_shards:
        row = range(x.shape[0])[shard.index[0]]
        assert len(row) == 1
        assert shard.device == devices[row[0]]
        assert shard.data.shape == (1, *x.shape[1:])


@pytest.mark.behaviour("F1")
@pytest.mark.parametrize("put", [pmapx.device_put_replicated, pmapx.replicate])
@pytest.mark.parametrize("devices", [DEVICES, DEVICES[::-1], DEVICES[:1], DEVICES[N // 2 :]])
def test_every_device_gets_a_copy_of_every_leaf(put, devices):
    before = tree()

    stacked = put(before, devices)

    assert_same(stacked, jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * len(devices)), before))
    for leaf in jax.tree.leaves(stacked):
        assert_row_a_device(leaf, devices)


def test_replicate_uses_the_devices_of_this_process():
    assert_row_a_device(pmapx.replicate(np.ones(2)), jax.local_devices())


def test_numbers_of_python_stay_weakly_typed():
    replicated = pmapx.replicate({"step": 0, "rate": 0.5, "phase": 1j, "done": False})
    sharded = pmapx.device_put_sharded([0.5] * N, DEVICES)

    assert [x.weak_type for x in jax.tree.leaves(replicated)] == [False, True, True, True]
    assert sharded.weak_type
    half = jnp.ones((), jnp.bfloat16)
    out = pmapx.pmap(lambda rate: rate * half)(replicated["rate"])
    assert out.dtype == jnp.bfloat16


@pytest.mark.behaviour("F1")
def test_no_program_is_run_to_stack_what_is_on_the_host():
    with counting() as counts:
        pmapx.replicate({"w": np.ones((7, 11), np.float32)})
        pmapx.device_put_sharded([np.ones((7, 11), np.float32)] * N, DEVICES)

    assert counts.traced == counts.compiled == []


@pytest.mark.behaviour("F2")
@pytest.mark.parametrize("devices", [DEVICES, DEVICES[::-1]])
def test_shard_i_is_index_i_of_the_leading_axis_on_device_i(devices):
    shards = [{**tree(), "number": np.float32(i)} for i in range(N)]

    stacked = pmapx.device_put_sharded(shards, devices)

    on_one_device = [jax.tree.map(on_first_device, shard) for shard in shards]
    assert_same(stacked, jax.tree.map(lambda *xs: jnp.stack(xs), *on_one_device))
    for leaf in jax.tree.leaves(stacked):
        assert_row_a_device(leaf, devices)


def on_first_device(x):
    return jax.device_put(x, DEVICES[0]) if isinstance(x, jax.Array) else jnp.asarray(x)


def test_shards_may_be_a_tuple_and_on_any_device():
    shards = tuple(jax.device_put(jnp.full(2, i), DEVICES[-1 - i]) for i in range(N))

    stacked = pmapx.device_put_sharded(shards, DEVICES)

    assert_same(stacked, np.repeat(np.arange(N, dtype=np.int32), 2).reshape(N, 2))


@pytest.mark.behaviour("F7")
def test_results_are_arrays_for_pmap_jit_and_shard_map_alike():
    rows = pmapx.replicate(np.arange(3, dtype=np.float32))

    doubled = pmapx.pmap(lambda x: 2 * x, reshard="error")(rows)
    assert isinstance(doubled.sharding, NamedSharding)
    assert_same(jax.jit(lambda x: x.sum(0))(doubled), 2.0 * N * np.arange(3, dtype=np.float32))
    mesh = Mesh(np.array(DEVICES), ("other",))
    summed = jax.shard_map(
        lambda x: jax.lax.psum(x, "other"), mesh=mesh, in_specs=P("other"), out_specs=P()
    )(doubled)
    assert_same(summed, 2.0 * N * np.arange(3, dtype=np.float32)[None])


def test_donating_replicated_shards_leaves_the_numpy_array_unchanged():
    buffer = np.zeros(4096 + 16, np.float32)
    start = (-buffer.ctypes.data % 64) // 4  # Where a CPU device may share it.
    host = buffer[start : start + 4096]
    step = pmapx.pmap(lambda x, i: x + i, donate_argnums=0)

    out = step(pmapx.replicate(host), np.arange(1.0, N + 1, dtype=np.float32))

    assert not host.any()
    assert_same(out[:, 0], np.arange(1, N + 1, dtype=np.float32))


def test_a_batch_is_split_over_the_devices():
    flat = {
        "x": np.arange(6.0 * N, dtype=np.float32).reshape(2 * N, 3),
        "committed": jax.device_put(jnp.arange(2 * N), DEVICES[-1]),
        "keys": jax.random.split(jax.random.key(0), 2 * N),
    }

    batch = pmapx.shard_batch(flat)

    assert_same(batch, jax.tree.map(lambda x: x.reshape(N, 2, *x.shape[1:]), flat))
    for leaf in jax.tree.leaves(batch):
        assert_row_a_device(leaf, DEVICES)


@pytest.mark.needs_devices(2)
def test_a_batch_can_be_split_over_some_devices():
    batch = pmapx.shard_batch(np.arange(6), DEVICES[1::-1])

    assert_row_a_device(batch, DEVICES[1::-1])
    assert_same(batch, np.arange(6, dtype=np.int32).reshape(2, 3))


@pytest.mark.parametrize(
    "put",
    [
        lambda x: pmapx.device_put_replicated(x, DEVICES),
        lambda x: pmapx.device_put_sharded([x] * N, DEVICES),
        lambda x: pmapx.shard_batch(jnp.stack([x] * N)),
        lambda x: pmapx.unreplicate(pmapx.replicate(x)),
        lambda x: pmapx.local_slice(pmapx.replicate(x), -1),
        lambda x: next(pmapx.prefetch([np.stack([np.asarray(x)] * N)])),
    ],
    ids=["replicated", "sharded", "batch", "unreplicate", "local_slice", "prefetch"],
)
@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
def test_functions_work_inside_set_mesh(put, axis_type):
    x = jnp.arange(4.0)
    outside = put(x)
    mesh = Mesh(np.array(DEVICES), ("i",), axis_types=(getattr(jax.sharding.AxisType, axis_type),))

    with jax.set_mesh(mesh):
        inside = put(x)

    assert_same(np.asarray(inside), np.asarray(outside))


def test_nothing_is_put_when_one_leaf_is_wrong():
    alive = len(jax.live_arrays())

    with pytest.raises(TypeError, match=r"x\['z'\]"):
        pmapx.device_put_replicated({"a": np.ones(3), "z": "text"}, DEVICES)

    assert len(jax.live_arrays()) == alive
