"""Cases of stitch, unstitch, barrier and checked calls; run by test_beside_the_map.py."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rows import ALL, HERE, LOCAL, MINE, PROCESSES, TOTAL, assert_rows, pointers

import pmapx


def mesh_of(*shape, names=("a", "b")):
    return Mesh(np.array(jax.devices()).reshape(shape), names[: len(shape)])


def held(x):
    return np.concatenate([shard.data for shard in x.addressable_shards])


def case_stitch_a_tree_over_devices():
    whole = pmapx.stitch({"x": MINE, "y": [MINE[:, 0]]}, jax.devices())
    assert whole["x"].shape == ALL.shape
    assert whole["y"][0].shape == (TOTAL,)
    np.testing.assert_array_equal(held(whole["x"]), MINE)
    total = jax.jit(lambda t: t["x"].sum() + t["y"][0].sum())(whole)
    np.testing.assert_allclose(total, ALL.sum() + ALL[:, 0].sum(), rtol=1e-6)


def case_stitch_by_specs_over_a_mesh():
    mesh = mesh_of(PROCESSES, LOCAL)
    specs = {"rows": P(("a", "b")), "half": P("a"), "everywhere": P(), "inner": P(None, "b")}
    local = {"rows": MINE, "half": MINE[:1], "everywhere": ALL, "inner": np.ones((3, LOCAL))}
    whole = pmapx.stitch(local, mesh, specs)
    assert {name: x.shape for name, x in whole.items()} == {
        "rows": ALL.shape,
        "half": (PROCESSES, 3),
        "everywhere": ALL.shape,
        "inner": (3, LOCAL),
    }
    np.testing.assert_array_equal(held(whole["rows"]), MINE)
    np.testing.assert_array_equal(jax.jit(lambda x: x + 0)(whole["everywhere"]), ALL)


def case_stitch_copies_no_array_that_is_in_its_place():
    mesh = Mesh(np.array(jax.local_devices()), ("i",))
    x = jax.device_put(MINE, NamedSharding(mesh, P("i")))
    whole = pmapx.stitch(x, jax.devices())
    assert pointers(whole) == pointers(x)
    assert pointers(pmapx.unstitch(whole)) == pointers(x)


def case_unstitch_is_the_way_back():
    tree = {"x": MINE, "key": jax.random.split(jax.random.key(0), LOCAL)}
    back = pmapx.unstitch(pmapx.stitch(tree, jax.devices()))
    assert_rows(back["x"], MINE)
    np.testing.assert_array_equal(
        jax.random.key_data(back["key"]), jax.random.key_data(tree["key"])
    )
    assert pmapx.unstitch(3.0) == 3.0
    two = pmapx.stitch(MINE, mesh_of(PROCESSES, LOCAL), P("a", None))
    assert_rows(pmapx.unstitch(two), MINE)


def case_a_part_that_does_not_divide_is_refused_by_its_path():
    with pytest.raises(ValueError, match=r"PMX410") as raised:
        pmapx.stitch({"x": MINE, "y": np.ones((LOCAL + 1, 2))}, jax.devices())
    assert "['y']" in str(raised.value)


def case_parts_that_differ_are_named_by_path_and_process():
    odd = MINE if HERE == 0 else MINE[:, :2]
    with pytest.raises(ValueError, match="PMX409") as raised:
        pmapx.stitch({"image": odd, "label": MINE}, jax.devices())
    text = str(raised.value)
    assert "['image']" in text
    assert f"process 0: ['image']: float32[{LOCAL}, 3]" in text
    assert "process 1: ['image']" in text


def case_a_barrier_lets_all_go_on_together():
    if HERE == 0:
        time.sleep(0.5)
    before = time.monotonic()
    for _ in range(3):
        pmapx.barrier("together", timeout=30)
    if HERE == 1:
        assert time.monotonic() - before > 0.2


def case_a_barrier_names_who_did_not_come():
    if HERE == 0:
        with pytest.raises(TimeoutError, match="PMX412") as raised:
            pmapx.barrier("lonely", timeout=1)
        assert "process 1 did not reach" in str(raised.value)
        assert "'lonely'" in str(raised.value)
    else:
        time.sleep(2)
    pmapx.barrier("after", timeout=30)


def case_a_process_that_comes_late_to_a_barrier_meets_those_that_try_again():
    for _ in range(2):
        if HERE == 0:
            with pytest.raises(TimeoutError, match="PMX412"):
                pmapx.barrier("late", timeout=1)
        else:
            time.sleep(3)
        begun = time.monotonic()
        if HERE == 0:
            time.sleep(0.5)
        pmapx.barrier("late", timeout=60)
        if HERE == 1:
            assert time.monotonic() - begun < 50


def case_replicas_that_agree_pass_the_check():
    step = pmapx.pmap(
        lambda w, x: w["a"] * x + lax.psum(x, "i"), "i", in_axes=(None, 0), check_replicas=True
    )
    for _ in range(3):
        assert_rows(step({"a": np.float32(2)}, MINE), 2 * MINE + ALL.sum(0))


def case_replicas_that_differ_are_named_by_path_and_process():
    step = pmapx.pmap(lambda w, x: w["a"] * x, in_axes=(None, 0), check_replicas=True)
    with pytest.raises(ValueError, match="PMX407") as raised:
        step({"a": jnp.float32(HERE), "b": jnp.float32(1)}, MINE)
    text = str(raised.value)
    assert "argument 0 'w' at ['a']" in text
    assert "process 0:" in text
    assert "process 1:" in text
    assert_rows(step({"a": jnp.float32(5), "b": jnp.float32(1)}, MINE), 5 * MINE)


def checked(fun):
    return pmapx.pmap(fun, "i", check_replicas=True)


def case_another_function_in_one_process_is_named():
    def first(x):
        return lax.psum(x, "i")

    def second(x):
        return lax.pmax(x, "i")

    with pytest.raises(RuntimeError, match="PMX408") as raised:
        checked(first if HERE == 0 else second)(MINE)
    assert "process 0: a call of first" in str(raised.value)
    assert "process 1: a call of second" in str(raised.value)


def case_another_shape_in_one_process_is_named():
    with pytest.raises(RuntimeError, match="PMX408") as raised:
        checked(lambda x: lax.psum(x, "i"))(MINE if HERE == 0 else MINE[:, :2])
    assert f"argument 0 'x': float32[{LOCAL},3]" in str(raised.value)
    assert f"argument 0 'x': float32[{LOCAL},2]" in str(raised.value)


def case_another_order_in_one_process_is_named():
    def early(x):
        return lax.psum(x, "i")

    def late(x):
        return lax.pmean(x, "i")

    order = [checked(early), checked(late)]
    if HERE == 1:
        order.reverse()
    with pytest.raises(RuntimeError, match="process 1: a call of late"):
        order[0](MINE)


def case_all_still_works():
    assert_rows(checked(lambda x: lax.psum(x, "i"))(MINE), np.broadcast_to(ALL.sum(0), MINE.shape))
