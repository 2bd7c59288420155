"""Cases of what can be done with a host-local result; run by test_results_over_processes.py.

The results come from repeated calls, which JAX's dispatch runs by itself: how they are made there
differs from the first call's, and between releases of JAX.
"""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rows import ALL, LOCAL, MINE, OWN, assert_rows, pointers

import pmapx

MESH = Mesh(np.array(jax.local_devices()), ("r",))
WANTED = (ALL + ALL.sum(0))[OWN]

_share = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i")
_columns = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i", out_axes=1)
_total = pmapx.pmap(lambda x: lax.psum(x, "i"), "i", out_axes=None)


def repeated(mapped, x):
    """The result of a call like others before it."""
    x = jax.device_put(x, NamedSharding(MESH, P("r")))
    for _ in range(3):
        result = mapped(x)
    return result


def result():
    return repeated(_share, MINE)


def case_read():
    assert_rows(result(), WANTED)
    np.testing.assert_allclose(jax.device_get(result()), WANTED)
    np.testing.assert_allclose(np.stack(list(result())), WANTED)
    assert result()[0, 1].item() == WANTED[0, 1]
    assert result().tolist() == WANTED.tolist()
    assert str(int(WANTED[0, 0])) in repr(result())


def case_read_another_axis_and_a_replicated_one():
    assert_rows(repeated(_columns, MINE), WANTED.T)
    assert_rows(repeated(_total, MINE), ALL.sum(0))


def case_read_ahead():
    x = result()
    x.copy_to_host_async()
    np.testing.assert_allclose(x, WANTED)


def case_indexed_and_computed_with():
    for k in range(LOCAL):
        np.testing.assert_allclose(result()[k], WANTED[k])
    np.testing.assert_allclose(result() + 1, WANTED + 1)
    np.testing.assert_allclose(result().sum(0), WANTED.sum(0))
    np.testing.assert_allclose(jnp.concatenate([result(), result()]), np.tile(WANTED, (2, 1)))
    np.testing.assert_allclose(jax.grad(lambda x: (x**2).sum() / 2)(result()), WANTED)


def case_given_to_jit_and_shard_map():
    np.testing.assert_allclose(jax.jit(lambda x: 2 * x)(result()), 2 * WANTED)
    mapped = jax.shard_map(lambda x: -x, mesh=MESH, in_specs=P("r"), out_specs=P("r"))
    np.testing.assert_allclose(jax.jit(mapped)(result()), -WANTED)
    out = jax.jit(lambda x: x, out_shardings=NamedSharding(MESH, P()))(result())
    np.testing.assert_allclose(out, WANTED)


def case_given_to_maps_of_this_process():
    alone = pmapx.pmap(lambda x: x - lax.psum(x, "i"), "i", devices=jax.local_devices())
    assert_rows(alone(result()), WANTED - WANTED.sum(0))
    assert_rows(alone(alone(result()) * 0 + result()), WANTED - WANTED.sum(0))


def case_moved():
    for to in [
        jax.local_devices()[-1],
        NamedSharding(MESH, P()),
        NamedSharding(MESH, P("r")),
        NamedSharding(Mesh(np.array(jax.local_devices()[::-1]), ("r",)), P("r")),
    ]:
        np.testing.assert_allclose(jax.device_put(result(), to), WANTED)


def case_copied_and_pickled():
    np.testing.assert_allclose(jnp.copy(result()), WANTED)
    np.testing.assert_allclose(copy.deepcopy(result()), WANTED)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(result())), WANTED)


def case_taken_apart_and_stitched():
    x = result()
    assert [shard.data.shape for shard in x.addressable_shards] == [(1, 3)] * LOCAL
    for k, shard in enumerate(x.addressable_shards):
        np.testing.assert_allclose(shard.data[0], WANTED[shard.index][0])
        np.testing.assert_allclose(x.addressable_data(k)[0], WANTED[k])
    whole = jax.make_array_from_single_device_arrays(
        ALL.shape,
        NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d")),
        [shard.data for shard in x.addressable_shards],
    )
    total = jax.jit(lambda x: x.sum())(whole)
    np.testing.assert_allclose(total, (ALL + ALL.sum(0)).sum(), rtol=1e-6)


def case_asked_about():
    x = result()
    jax.block_until_ready(x)
    assert x.is_ready()
    assert x.committed
    assert not x.is_deleted()
    assert x.nbytes == WANTED.nbytes
    assert x.sharding.is_equivalent_to(NamedSharding(MESH, P("r")), 2)
    assert x.sharding.shard_shape(x.shape) == (1, 3)


def case_donated_and_deleted():
    x = result()
    np.testing.assert_allclose(jax.jit(lambda x: x + 1, donate_argnums=0)(x), WANTED + 1)
    assert x.is_deleted()
    y = result()
    y.delete()
    assert y.is_deleted()
    with pytest.raises(RuntimeError):
        np.asarray(y)


def case_donated_in_a_loop():
    step = pmapx.pmap(lambda x: x + lax.axis_index("i"), "i", donate_argnums=0)
    x = step(jnp.asarray(MINE))
    for _ in range(5):
        before, previous = pointers(x), x
        x = step(x)
        assert previous.is_deleted()
        assert pointers(x) == before
    index = np.arange(len(ALL))[OWN, None]
    assert_rows(x, MINE + 6 * index)


def case_keys_in_a_loop():
    keys = jax.random.split(jax.random.key(3), len(ALL))
    step = pmapx.pmap(lambda k: jax.random.fold_in(k, 1))
    own, wanted = keys[OWN], keys
    for _ in range(4):
        own, wanted = step(own), jax.vmap(lambda k: jax.random.fold_in(k, 1))(wanted)
    np.testing.assert_array_equal(jax.random.key_data(own), jax.random.key_data(wanted)[OWN])


def case_a_loop_fed_from_the_host():
    step = pmapx.pmap(lambda s, x: (s + lax.pmean(x, "i"), x.sum()), "i")
    state = np.zeros_like(MINE)
    for _ in range(4):
        state, sums = step(state, MINE)
    assert_rows(state, np.broadcast_to(4 * ALL.mean(0), MINE.shape))
    assert_rows(sums, MINE.sum(1))


def case_placements_in_turn():
    here = jax.local_devices()
    reverse = NamedSharding(Mesh(np.array(here[::-1]), ("r",)), P("r"))
    everywhere = pmapx.pmap(lambda x: x, view="global")(MINE)
    mapped = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i")
    inputs = [
        MINE,
        jnp.asarray(MINE),
        jax.device_put(MINE, here[-1]),
        jax.device_put(MINE, here[0]),
        jax.device_put(MINE, reverse),
        jax.device_put(MINE, NamedSharding(MESH, P())),
        jax.device_put(MINE, NamedSharding(MESH, P("r"))),
        everywhere,
    ]
    for _ in range(3):
        for x in inputs:
            assert_rows(mapped(x), WANTED)
    assert mapped.cache_info().compiles == mapped.cache_info().traces == 1


def slow_calls_of(mapped):
    """Returns a list to which each call of a pmapped function that Python handles adds itself."""
    calls, builder = [], mapped._pmapx
    inner = builder.global_signature
    builder.global_signature = lambda call: calls.append(call) or inner(call)
    return calls


def can_convert_in_cpp():
    from pmapx._src.fastpath import multiprocess

    return multiprocess.HOST_LOCAL.is_usable("cpu")


def can_run_in_cpp():
    from pmapx._src import fastpath

    return fastpath.can_run_locally(tuple(jax.local_devices())) or can_convert_in_cpp()


def case_the_dispatch_runs_the_loop_by_itself():
    mapped = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i")
    x = mapped(mapped(mapped(MINE)))
    calls = slow_calls_of(mapped)
    for _ in range(5):
        x = mapped(x)
    assert len(calls) == (0 if can_run_in_cpp() else 5)


def case_an_oversubscribed_call_does_not_slow_others_down():
    mapped = pmapx.pmap(lambda x: x + 1, "i", oversubscribe=True)
    few, many = MINE, np.concatenate([MINE, MINE])
    for _ in range(3):
        many, few = mapped(many), mapped(few)
    calls = slow_calls_of(mapped)
    for _ in range(3):
        few = mapped(few)
    assert len(calls) == (0 if can_run_in_cpp() else 3)
    calls.clear()
    for _ in range(3):
        many = mapped(many)
    assert len(calls) == (0 if can_convert_in_cpp() else 3)
    assert_rows(few, MINE + 6)
    assert_rows(many, np.concatenate([MINE, MINE]) + 6)


def case_host_local_arguments_of_a_global_view_in_a_loop():
    mapped = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i", view="global")
    own = pmapx.pmap(lambda x: x)(MINE)
    again = jax.device_put(MINE, NamedSharding(Mesh(np.array(jax.local_devices()), ("z",)), P("z")))
    for x in (own, again, MINE) * 3:
        result = mapped(x)
        assert result.shape == ALL.shape
        assert_rows(pmapx.unstitch(result), WANTED)


def case_donated_results_of_a_loop_are_consumed():
    step = pmapx.pmap(lambda s: {"s": s["s"] + lax.psum(1.0, "i")}, "i", donate_argnums=0)
    state = pmapx.pmap(lambda x: {"s": x})(MINE)
    for _ in range(4):
        before, state = state, step(state)
        assert before["s"].is_deleted()
    assert_rows(state["s"], MINE + 4 * len(ALL))
