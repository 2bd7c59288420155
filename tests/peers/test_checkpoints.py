"""Checkpoints that Flax and Orbax write from pmap's replicated state, unstacked and restored."""

import json
import os
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from results import NOT_HERE

pytest.importorskip("flax", reason=NOT_HERE)
pytest.importorskip("optax", reason=NOT_HERE)
pytest.importorskip("orbax.checkpoint", reason=NOT_HERE)

import flax.core
import flax.serialization
import optax
import orbax.checkpoint as ocp
from flax.training import train_state

import pmapx
from pmapx._src.checkpoint.base import LeavesDifferError
from pmapx._src.checkpoint.conversion import stack, unstack


def make_state(dtype=jnp.float32):
    params = {"dense": {"kernel": jnp.arange(6, dtype=dtype).reshape(2, 3), "bias": jnp.ones(3)}}
    made = train_state.TrainState.create(apply_fn=None, params=params, tx=optax.adam(1e-3))
    return made.replace(step=jnp.zeros((), jnp.int32))


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture
def paths(tmp_path):
    return tuple(str(tmp_path / name) for name in ("old", "new", "back"))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_flax_reads_what_was_unstacked_and_stacked(paths, dtype):
    old, new, back = paths
    state = make_state(dtype)
    stacked = pmapx.replicate(state)
    with open(old, "wb") as file:
        file.write(flax.serialization.to_bytes(stacked))
    done = unstack(old, new)
    assert "params['dense']['kernel']" in done.changed
    with open(new, "rb") as file:
        assert_same(flax.serialization.from_bytes(state, file.read()), state)
    stack(new, back, n=jax.device_count())
    with open(back, "rb") as first, open(old, "rb") as second:
        assert first.read() == second.read()


def test_flax_splits_large_arrays_as_we_do(paths, monkeypatch):
    from pmapx._src.checkpoint import flax_msgpack

    old, new, back = paths
    monkeypatch.setattr(flax_msgpack, "_CHUNK_BYTES", 64)
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 64)
    with open(old, "wb") as file:
        file.write(flax.serialization.msgpack_serialize({"w": np.arange(50.0), "c": 1 + 2j}))
    stack(old, new, n=3)
    with open(new, "rb") as file:
        found = flax.serialization.msgpack_restore(file.read())
    assert found["w"].shape == (3, 50)
    assert found["c"] == 1 + 2j
    unstack(new, back)
    with open(back, "rb") as first, open(old, "rb") as second:
        assert first.read() == second.read()


def test_a_pickle_of_optax_states_and_frozen_dicts_keeps_them(paths):
    old, new, _ = paths
    state = make_state()
    tree = {"params": flax.core.freeze(state.params), "opt_state": state.opt_state}
    with open(old, "wb") as file:
        pickle.dump(pmapx.replicate(tree), file)
    done = unstack(old, new, trust_pickle=True)
    assert "opt_state[0].mu['dense']['kernel']" in done.changed
    with open(new, "rb") as file:
        assert_same(pickle.load(file), tree)


def tree_with_all_kinds():
    return {
        "state": make_state(jnp.bfloat16),
        "pair": (jnp.ones(2), jnp.ones(3)),
        "nothing": None,
        "empty": {},
        "key": jax.random.key(3),
    }


def abstract(tree):
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), tree)


def comparable(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def stacked(tree):
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (jax.device_count(), *x.shape)), tree)


@pytest.mark.parametrize("ocdbt", [True, False])
def test_orbax_restores_what_was_unstacked_and_stacked(paths, ocdbt):
    old, new, back = paths
    tree = tree_with_all_kinds()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt)) as checkpointer:
        checkpointer.save(old, args=ocp.args.PyTreeSave({**stacked(tree), "epoch": 3, "name": "a"}))
    done = unstack(old, new)
    assert done.kind == "Orbax"
    assert "state['params']['dense']['kernel']" in done.changed
    assert done.left == (("epoch", "int"),)
    assert os.path.exists(os.path.join(new, "manifest.ocdbt")) is ocdbt
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt)) as checkpointer:
        target = {**abstract(tree), "epoch": 0, "name": ""}
        arguments = ocp.args.PyTreeRestore(
            target, restore_args=ocp.checkpoint_utils.construct_restore_args(target)
        )
        found = checkpointer.restore(new, args=arguments)
    assert (found.pop("epoch"), found.pop("name")) == (3, "a")
    assert_same(comparable(found), comparable(tree))

    stack(new, back, n=jax.device_count())
    assert set(unstack(back, new, force=True).changed) == set(done.changed)


def test_a_step_of_a_manager_keeps_its_other_items(paths):
    old, new, _ = paths
    state = make_state()
    with ocp.CheckpointManager(old) as manager:
        for step in (1, 2):
            arguments = ocp.args.Composite(
                state=ocp.args.StandardSave(stacked(state)), notes=ocp.args.JsonSave({"a": step})
            )
            manager.save(step, args=arguments)
        manager.wait_until_finished()
    done = unstack(old, new)
    assert "1/state/params['dense']['bias']" in done.changed
    with ocp.CheckpointManager(new) as manager:
        assert manager.latest_step() == 2
        arguments = ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract(state)),
            notes=ocp.args.JsonRestore(),
        )
        found = manager.restore(2, args=arguments)
    assert_same(found["state"].params, state.params)
    assert found["notes"] == {"a": 2}

    one = os.path.join(old, "2")
    assert "params['dense']['bias']" in unstack(one, new, force=True, dry_run=True).changed


@pytest.mark.needs_devices(2)
def test_orbax_leaves_that_differ_are_named(paths):
    old, new, _ = paths
    keys = jax.random.split(jax.random.key(0), jax.device_count())
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(old, {"w": jnp.ones((jax.device_count(), 2)), "rng": keys})
    with pytest.raises(LeavesDifferError, match="rng: device 1's copy"):
        unstack(old, new)
    assert not os.path.exists(new)
    unstack(old, new, keep=["rng"])
    with ocp.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(new)
    assert found["rng"].shape == keys.shape
    assert found["rng"].dtype == keys.dtype


def test_orbax_metadata_of_the_user_is_kept(paths):
    old, new, _ = paths
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        arguments = ocp.args.PyTreeSave({"w": np.ones((4, 2))}, custom_metadata={"run": "a"})
        checkpointer.save(old, args=arguments)
    unstack(old, new)
    with open(os.path.join(new, "_METADATA")) as file:
        assert json.load(file)["custom_metadata"] == {"run": "a"}
