"""pmapx.testing: assertions on functions of pmap, jit and shard_map."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx
from pmapx import testing

N = jax.device_count()
X = np.arange(4.0 * N, dtype=np.float32).reshape(N, 4)
needs_two = pytest.mark.needs_devices(2)


ROWS = P("i")


def sharded(body, in_specs=ROWS, out_specs=ROWS):
    mesh = Mesh(np.array(jax.devices()), ("i",))
    return jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    )


def test_replicated_and_stacked_equal_arrays_pass():
    everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), P())

    testing.assert_replicated(pmapx.replicate({"w": X[0], "step": 3}))
    testing.assert_replicated(jax.device_put({"w": X}, everywhere))
    testing.assert_replicated(pmapx.replicate(np.array([np.nan])))


@needs_two
def test_shards_that_differ_are_named_with_the_array_and_devices():
    with pytest.raises(AssertionError, match=r"\['w'\].*differs between .*0 and .*1 by up to"):
        testing.assert_replicated({"w": pmapx.pmap(lambda x: x)(X)})


@needs_two
def test_replicas_that_differ_are_found_even_if_their_spec_is_replicated():
    with pytest.raises(AssertionError, match="differs between"):
        testing.assert_replicated(sharded(lambda x: x, out_specs=P())(X))


@needs_two
def test_an_array_on_one_device_is_not_replicated():
    with pytest.raises(AssertionError, match=r"is on .* only"):
        testing.assert_replicated(jnp.ones(3))
    with pytest.raises(AssertionError, match="is a ndarray"):
        testing.assert_replicated(X)


def step(state, x):
    return {"w": state["w"] - x.mean(), "step": state["step"] + 1}


@pytest.mark.parametrize("kind", ["jit", "pmap", "shard_map", "donated"])
def test_a_loop_that_keeps_its_types_compiles_once(kind):
    state = {"w": jnp.ones(4), "step": jnp.int32(0)}
    if kind == "pmap":
        testing.assert_compiles_once(pmapx.pmap(step), pmapx.replicate(state), X)
    elif kind == "shard_map":
        rows = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), P("i"))
        spread = {"w": jax.device_put(X, rows), "step": jax.device_put(np.zeros(N, int), rows)}
        testing.assert_compiles_once(sharded(step), spread, X)
    else:
        donated = 0 if kind == "donated" else ()
        f = jax.jit(step, donate_argnums=donated)
        testing.assert_compiles_once(f, state, X)
        assert not state["w"].is_deleted()


def test_a_weak_type_that_becomes_definite_is_named():
    f = jax.jit(lambda state: {"step": jnp.float32(state["step"]) + 1})

    words = r"compiled again at call 2: state\['step'\] was .*weak"
    with pytest.raises(AssertionError, match=words):
        testing.assert_compiles_once(f, {"step": 0.0})


def test_a_function_pmapped_again_in_each_call_is_reported():
    def call(x):
        return jax.jit(lambda x: x + 1)(x)

    with pytest.raises(AssertionError, match="does it create a new function each time"):
        testing.assert_compiles_once(call, jnp.asarray(X))


@needs_two
def test_a_state_that_comes_from_the_host_first_is_named():
    with pytest.raises(AssertionError, match=r"x was .* from the host, is .* as NamedSharding"):
        testing.assert_compiles_once(sharded(lambda x: x + 1), X)


@needs_two
@pytest.mark.parametrize("make", [pmapx.pmap, lambda f, name: sharded(f)], ids=["pmap", "jit"])
def test_a_gather_is_named_with_its_line(make):
    def gathers(x):
        return lax.all_gather(x, "i").sum() + x

    line = gathers.__code__.co_firstlineno + 1
    with pytest.raises(
        AssertionError, match=rf"all-gather of .* over i at .*test_asserts.py:{line} \(all_gather\)"
    ):
        testing.assert_no_gather(make(gathers, "i"), X)
    testing.assert_no_gather(make(lambda x: lax.psum(x, "i"), "i"), X)


@pytest.mark.needs_devices(8)
def test_a_gather_that_xla_adds_is_found():
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), P("i"))
    x = jax.device_put(np.arange(16.0 * N).reshape(8 * N, 2), rows)

    with pytest.raises(AssertionError, match="added by XLA"):
        testing.assert_no_gather(jax.jit(lambda x: jnp.sort(x, axis=0)), x)
