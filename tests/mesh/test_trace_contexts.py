"""What a trace depends on beside its arguments, and `jax.clear_caches()` (I3)."""

import gc
import inspect
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import compute_on as computing
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import Mesh

import pmapx
from pmapx._src.mesh import trace_context

N = jax.device_count()
X = np.arange(N, dtype=np.float32)
USER_CONTEXT = jax.make_user_context("default") if hasattr(jax, "make_user_context") else None


def in_user_context():
    return USER_CONTEXT("another") if USER_CONTEXT else pytest.skip("JAX has no user contexts")


def on_the_host():
    if "out_memory_spaces" in inspect.signature(computing.compute_on).parameters:
        pytest.skip("compute_on is no context manager in this release")
    return computing.compute_on("device_host")


CONTEXTS = {
    "compute_on": on_the_host,
    "xla_metadata": lambda: set_xla_metadata(kind="fast"),
    "user context": in_user_context,
    "enable_x64": lambda: jax.enable_x64(True),
    "matmul precision": lambda: jax.default_matmul_precision("float32"),
    "dtype promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "default device": lambda: jax.default_device(jax.devices()[-1]),
}


@pytest.mark.parametrize("enter", CONTEXTS.values(), ids=CONTEXTS.keys())
def test_a_program_is_traced_again_in_another_context(enter):
    def body(x):
        traces.append(1)
        return x + 1

    traces = []
    mapped = pmapx.pmap(body)
    for _ in range(2):
        mapped(X)
        with enter():
            mapped(X)

    assert len(traces) == 2


def test_a_user_context_reaches_the_mapped_body():
    with in_user_context():
        pass
    mapped = pmapx.pmap(lambda x: x + len(USER_CONTEXT.value))

    outside = mapped(X)
    with USER_CONTEXT("another, longer"):
        inside = mapped(X)

    np.testing.assert_array_equal(outside, X + len("default"))
    np.testing.assert_array_equal(inside, X + len("another, longer"))


def test_a_context_keeps_its_number():
    number = trace_context.trace_context()
    with jax.default_matmul_precision("float32"):
        other = trace_context.trace_context()

    assert trace_context.trace_context() == number
    assert other != number


def test_a_mesh_around_the_call_is_left_out(devices):
    number = trace_context.trace_context()

    with jax.set_mesh(Mesh(np.array(devices), ("x",))):
        assert trace_context.trace_context() == number


def test_a_context_is_known_inside_a_trace():
    numbers = []

    jax.make_jaxpr(lambda x: numbers.append(trace_context.watched_context()) or x)(1.0)

    assert numbers == [trace_context.watched_context()]


@pytest.mark.parametrize("setting", [jax.checking_leaks, jax.disable_jit], ids=["leaks", "no jit"])
def test_a_context_is_known_under_settings_for_debugging(setting):
    with setting():
        assert isinstance(trace_context.trace_context(), int)


@pytest.mark.behaviour("I3")
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["called", "inside jit"])
def test_after_jax_clear_caches_a_pmapped_function_reads_its_closure_again(wrap):
    number = 1
    mapped = wrap(pmapx.pmap(lambda x: x + number))
    for _ in range(2):
        mapped(X)

    number = 2
    before = mapped(X)
    jax.clear_caches()
    after = mapped(X)

    np.testing.assert_array_equal(before, X + 1)
    np.testing.assert_array_equal(after, X + 2)


@pytest.mark.behaviour("I3")
def test_jax_clear_caches_is_the_reason_for_the_next_compile():
    mapped = pmapx.pmap(lambda x: x * 2)
    mapped(X)
    jax.clear_caches()
    mapped(X)

    assert mapped.cache_info().traces == 2
    assert mapped.cache_info().reasons == ("first call", "the caches were cleared")


class Static:
    """A static argument that can be watched."""


USES = {
    "called": lambda mapped, static: [mapped(static, X) for _ in range(3)],
    "inside jit": lambda mapped, static: jax.jit(lambda x: mapped(static, x))(X),
    "lowered": lambda mapped, static: mapped.lower(static, X).compile(),
    "evaluated abstractly": lambda mapped, static: mapped.eval_shape(static, X),
}


@pytest.mark.behaviour("I3")
@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_jax_clear_caches_frees_programs_and_their_static_arguments(use):
    mapped = pmapx.pmap(lambda static, x: x + 1, static_broadcasted_argnums=0)
    static = Static()
    use(mapped, static)
    held = [weakref.ref(each) for each in mapped._pmapx.cache.built()]
    watched = weakref.ref(static)

    del static
    jax.clear_caches()
    gc.collect()

    assert held
    assert [ref() for ref in (watched, *held)] == [None] * (1 + len(held))


@pytest.mark.behaviour("I3")
def test_jax_clear_caches_inside_a_mapped_body_works():
    def body(x):
        jax.clear_caches()
        return pmapx.pmap(lambda y: y * 2, axis_name="j")(x[None])[0] + 1

    mapped = pmapx.pmap(body)

    for _ in range(2):
        np.testing.assert_array_equal(mapped(X), 2 * X + 1)


@pytest.mark.behaviour("I3")
@pytest.mark.behaviour("A17")
def test_jax_clear_caches_while_others_call():
    mapped = pmapx.pmap(lambda x: x + 1)
    wrong, stop = [], threading.Event()

    def call():
        while not stop.is_set():
            if not np.array_equal(mapped(X), X + 1):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        jax.clear_caches()
        jnp.ones(3).block_until_ready()
    stop.set()
    for thread in threads:
        thread.join(timeout=60)

    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
