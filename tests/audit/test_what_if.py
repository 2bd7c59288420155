"""What a step costs with FSDP, computed by hand and from programs that are written that way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx
from pmapx import errors
from pmapx._src import fastpath

pytestmark = pytest.mark.needs_devices(8)
needs_more_cpu_devices = pytest.mark.skipif(
    fastpath.more_cpu_devices(1) is None, reason="public JAX makes its CPU devices once"
)
N = 8
# 64 x 256 and 256 x 5 divide by 8 and 16 devices, 5 does not; a float32 has 4 bytes.
DIVIDES, DOES_NOT = 4 * (64 * 256 + 256 * 5), 4 * 5
BATCH = 4 * (8 * 64 + 8 * 5)


def random(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def make_state():
    params = {"a": random(64, 256), "b": random(256, 5), "c": random(5)}
    momentum = jax.tree.map(lambda w: w + 1, params)
    return {"params": params, "momentum": momentum, "step": np.int32(0)}


def make_batch():
    return random(64, 64), random(64, 5)


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"] + params["c"] - y) ** 2)


def updated(state, grads):
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda w, m: w - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum, "step": state["step"] + 1}


def step(state, x, y):
    return updated(state, jax.grad(loss)(state["params"], x, y))


def step_of_a_device(state, x, y):
    return updated(state, lax.pmean(jax.grad(loss)(state["params"], x, y), "data"))


def mesh(*sizes, names=("data",)):
    return Mesh(np.array(jax.devices()[:N]).reshape(sizes or (N,)), names)


def put(tree, spec, over=None):
    return jax.device_put(tree, NamedSharding(over or mesh(), spec))


def jitted():
    arguments = put(make_state(), P()), *put(make_batch(), P("data"))
    return jax.jit(step, donate_argnums=0), arguments


def pmapped():
    batch = [x.reshape(N, 8, -1) for x in make_batch()]
    f = pmapx.pmap(step_of_a_device, "data", donate_argnums=0)
    return f, (pmapx.replicate(make_state()), *batch)


def shard_mapped():
    f = jax.shard_map(
        step_of_a_device,
        mesh=mesh(),
        in_specs=(P(), P("data"), P("data")),
        out_specs=P(),
        check_vma=False,
    )
    return jax.jit(f, donate_argnums=0), jitted()[1]


FORMS = [jitted, pmapped, shard_mapped]


def what_if(f, args, **options):
    (function,) = pmapx.audit(f, *args, what_if="fsdp", **options).functions
    return function.what_if


@pytest.mark.parametrize("make", FORMS)
def test_state_is_divided_by_the_devices_where_its_shapes_divide(make):
    found = what_if(*make())

    assert (found.reason, found.axis, found.devices) == (None, "data", N)
    group = dict.fromkeys(("state['params']", "state['momentum']"), DIVIDES + DOES_NOT)
    rest = {"state['step']": 4, "other arguments": BATCH}
    assert found.before.arguments == group | rest
    assert found.after.arguments == dict.fromkeys(group, DIVIDES // N + DOES_NOT) | rest
    assert set(found.kept) == {"state['params']['c']", "state['momentum']['c']"}
    assert found.assumed == ()


@needs_more_cpu_devices
@pytest.mark.parametrize("make", FORMS)
def test_on_a_topology_it_is_divided_by_the_devices_there(make):
    found = what_if(*make(), topology="cpu:16")

    assert found.devices == 16
    assert found.before.arguments["state['params']"] == DIVIDES + DOES_NOT
    assert found.after.arguments["state['params']"] == DIVIDES // 16 + DOES_NOT
    assert found.after.arguments["other arguments"] == BATCH  # The global batch grows.


def test_now_gradients_are_reduced_once():
    f, args = jitted()
    (function,) = pmapx.audit(f, *args, what_if="fsdp").functions

    before = function.what_if.before
    gradients = DIVIDES + DOES_NOT
    assert before.collectives == {"all-reduce": 1}
    assert before.sent == function.sent_in_a_call == 2 * (gradients * (N - 1) // N)
    assert before.memory == function.memory.total
    assert before.temporaries == function.memory.temporaries


@pytest.mark.parametrize("make", FORMS)
def test_the_figures_are_those_of_a_step_with_sharded_state(make):
    def sharding(leaf):
        largest = next((k for k in np.argsort(leaf.shape)[::-1] if leaf.shape[k] % N == 0), None)
        return NamedSharding(mesh(), P() if largest is None else P(*[None] * largest, "data"))

    state = make_state()
    shardings = jax.tree.map(sharding, state)
    by_hand = jax.jit(step, donate_argnums=0, out_shardings=shardings)
    arguments = jax.device_put(state, shardings), *put(make_batch(), P("data"))
    (expected,) = pmapx.audit(by_hand, *arguments).functions

    after = what_if(*make()).after
    assert after.memory == expected.memory.total
    assert after.sent == expected.sent_in_a_call
    assert sum(after.collectives.values()) == len(expected.exchanges)


def test_a_raw_key_and_other_small_arrays_stay_replicated():
    state = {"w": random(32, 32), "bias": random(992), "key": jax.random.PRNGKey(0)}

    def with_key(state, x):
        key, now = jax.random.split(state["key"])
        noisy = x + jax.random.normal(now, x.shape)
        grad = jax.grad(lambda w: jnp.mean((noisy @ w) ** 2))(state["w"])
        return {"w": state["w"] - grad, "bias": state["bias"] + 1, "key": key}

    over = Mesh(np.array(jax.devices()[:2]), ("data",))
    arguments = put(state, P(), over), put(random(8, 32), P("data"), over)
    found = what_if(jax.jit(with_key), arguments)

    assert found.sharded == ("state['w']",)
    assert found.kept == ("state['bias']",)  # A key is a number to the report.


def test_parameters_that_another_axis_shards_are_sharded_over_both():
    over = mesh(4, 2, names=("data", "model"))
    weights, x = put(random(64, 16), P(None, "model"), over), put(random(8, 64), P("data"), over)
    f = jax.jit(lambda w, x: w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w))

    found = what_if(f, (weights, x))

    assert (found.axis, found.devices) == ("data", 4)
    assert found.before.arguments == {"w": 4 * 64 * 8, "other arguments": 4 * 2 * 64}
    assert found.after.arguments["w"] == 4 * 64 * 8 // 4


def test_parameters_that_are_only_read_are_assumed_to_be_equal():
    f = pmapx.pmap(lambda w, x: lax.pmean(jnp.mean(x @ w), "data"), "data")

    found = what_if(f, (pmapx.replicate(random(16, 64)), random(N, 4, 16)))

    assert found.assumed == ("w",)
    assert found.before.arguments["w"] == 8 * found.after.arguments["w"] == 4 * 16 * 64


def in_a_jit():
    inner, args = shard_mapped()
    return jax.jit(lambda state, x, y: inner(state, 2 * x, y)), args


def of_another_device():
    def body(w, x):
        return w + lax.psum(x.mean(0) * lax.axis_index("data"), "data")

    return pmapx.pmap(body, "data"), (pmapx.replicate(random(16)), random(N, 4, 16))


REASONS = {
    "a shard_map in it": in_a_jit,
    "`axis_index` at test_what_if.py:": of_another_device,
    "runs on one device": lambda: (jax.jit(step), (make_state(), *make_batch())),
    "no argument is sharded": lambda: (jax.jit(jnp.sin), (put(random(16), P()),)),
    "nothing is replicated over data": lambda: (jax.jit(jnp.sin), (put(random(16), P("data")),)),
    "a pmap of a pmap": lambda: (
        pmapx.pmap(pmapx.pmap(jnp.sin, "j"), "i"),
        (random(4, 2, 3),),
    ),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_step_that_cannot_be_sharded_is_reported_with_the_reason(reason):
    f, args = REASONS[reason]()
    (function,) = pmapx.audit(f, *args, what_if="fsdp").functions

    assert reason in function.what_if.reason
    assert function.what_if.before is None
    assert f"with FSDP: {function.what_if.reason}" in str(pmapx.AuditReport((function,)))


def test_the_table_is_in_the_text_the_data_and_the_page(tmp_path):
    f, args = jitted()
    report = pmapx.audit(f, *args, what_if="fsdp")

    text, page = str(report), tmp_path / "audit.html"
    report.to_html(page)

    assert "FSDP over data=8" in text
    assert "state['params']    69.0 KiB          8.64 KiB" in text
    assert "stay replicated, small or no dimension divides: " in text
    assert pmapx.AuditReport.from_dict(report.to_dict()) == report
    assert "FSDP over data=8" in page.read_text()


def test_another_what_if_is_refused():
    f, args = jitted()
    with pytest.raises(errors.UnknownWhatIf, match="'zero'"):
        pmapx.audit(f, *args, what_if="zero")
