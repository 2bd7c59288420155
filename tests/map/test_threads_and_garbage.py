"""Used from many threads at once (A17), and freed when dropped (A18)."""

import functools
import gc
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx

N = jax.device_count()
THREADS = 16
TIME_LIMIT = 120


def rows(value):
    """Rows that lie where they are mapped, so that no thread moves anything."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("r",)), P("r"))
    return jax.device_put(np.full((N, 4), value, np.float32), sharding)


def in_threads(work):
    """Run `work(k)` in 16 threads that start together; gives the results, or fails in time."""
    start = threading.Barrier(THREADS)

    def wait_and_work(k):
        start.wait()
        return work(k)

    pool = ThreadPoolExecutor(THREADS)
    futures = [pool.submit(wait_and_work, k) for k in range(THREADS)]
    deadline = time.monotonic() + TIME_LIMIT
    try:
        return [future.result(timeout=max(0, deadline - time.monotonic())) for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@pytest.fixture(autouse=True)
def _switch_threads_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.behaviour("A17")
def test_threads_that_call_one_function_get_their_own_results():
    mapped = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i")
    mapped(rows(0))

    def work(k):
        x = rows(k)
        return [np.asarray(mapped(x)) for _ in range(10)]

    for k, results in enumerate(in_threads(work)):
        for result in results:
            np.testing.assert_array_equal(result, np.full((N, 4), k + N * k))
    assert mapped.cache_info().compiles == 1
    assert mapped.cache_info().calls == 1 + 10 * THREADS


@pytest.mark.behaviour("A17")
def test_threads_that_make_the_first_call_together_compile_once():
    bodies = []

    def fun(x):
        bodies.append(threading.get_ident())
        time.sleep(0.05)
        return x + 1

    mapped = pmapx.pmap(fun)
    results = in_threads(lambda k: np.asarray(mapped(rows(k))))

    for k, result in enumerate(results):
        np.testing.assert_array_equal(result, np.full((N, 4), k + 1))
    assert mapped.cache_info().compiles == 1
    assert len(bodies) == 1


@pytest.mark.behaviour("A17")
def test_threads_that_trace_different_shapes_do_not_mix_them():
    mapped = pmapx.pmap(lambda x: x.sum() + x.shape[0])

    def work(k):
        x = np.ones((N, k + 1), np.float32)
        return np.asarray(mapped(x))

    for k, result in enumerate(in_threads(work)):
        np.testing.assert_array_equal(result, np.full(N, 2 * (k + 1)))
    assert mapped.cache_info().compiles == THREADS


@pytest.mark.behaviour("A17")
def test_threads_with_options_of_their_own_do_not_mix_them(devices):
    meshes = [Mesh(np.array(devices), (name,)) for name in ("i", "x")]

    def work(k):
        mapped = pmapx.pmap(
            lambda x: x * k + lax.axis_index("a"), "a", out_axes=k % 2, in_axes=k % 2
        )
        x = np.ones((N, N), np.float32)
        with jax.set_mesh(meshes[k % 2]):
            return np.asarray(mapped(x))

    for k, result in enumerate(in_threads(work)):
        index = np.arange(N)[:, None] if k % 2 == 0 else np.arange(N)
        np.testing.assert_array_equal(result, np.full((N, N), k) + index)


@pytest.mark.behaviour("A17")
def test_threads_that_trace_nested_maps_keep_their_own_nesting():
    def work(k):
        size = N if k % 2 else 1
        inner = pmapx.pmap(lambda x: x + lax.axis_index("j") + k, "j")
        x = np.zeros((1, size), np.float32)
        return np.asarray(pmapx.pmap(inner, "i")(x))

    for k, result in enumerate(in_threads(work)):
        size = N if k % 2 else 1
        np.testing.assert_array_equal(result, (np.arange(size) + k)[None])


@pytest.mark.behaviour("A17")
@pytest.mark.behaviour("A18")
def test_threads_that_call_trace_and_drop_at_once():
    shared = pmapx.pmap(lambda x: x + 1)
    dropped = []

    def work(k):
        for turn in range(2):
            own = pmapx.pmap(functools.partial(lambda scale, x: scale * x, k + turn))
            dropped.append(weakref.ref(own))
            x = rows(1)
            np.testing.assert_array_equal(own(x), np.full((N, 4), k + turn))
            np.testing.assert_array_equal(shared(x), np.full((N, 4), 2))
            own.lower(x)
            own.eval_shape(x)
            if turn % 2:
                shared.clear_cache()
            del own
        return k

    assert in_threads(work) == list(range(THREADS))
    gc.collect()
    assert len(dropped) == 2 * THREADS
    assert not any(ref() for ref in dropped)


@pytest.mark.behaviour("A17")
def test_a_failing_thread_does_not_harm_the_others():
    mapped = pmapx.pmap(lambda x: x + 1)

    def work(k):
        if k % 2:
            with pytest.raises(pmapx.PmapxError):
                mapped(np.float32(k))
            return None
        return np.asarray(mapped(rows(k)))

    for k, result in enumerate(in_threads(work)):
        if k % 2 == 0:
            np.testing.assert_array_equal(result, np.full((N, 4), k + 1))


@pytest.mark.behaviour("A17")
def test_cache_info_may_be_read_while_others_call(devices):
    mapped = pmapx.pmap(lambda x: x + 1)

    def work(k):
        for turn in range(5):
            info = mapped.cache_info()
            assert info.compiles <= 2
            mapped(jax.device_put(np.ones((N, 1 + turn % 2), np.float32), devices[0]))
        return True

    assert all(in_threads(work))
    assert mapped.cache_info().calls == 5 * THREADS


@pytest.mark.behaviour("A17")
def test_donation_from_several_threads():
    step = pmapx.pmap(lambda x: x + 1, donate_argnums=0)

    def work(k):
        x = rows(k)
        for _ in range(5):
            # Of many steps in flight, XLA's CPU backend now and then finishes none, by whomever
            # they are launched.
            x = jax.block_until_ready(step(x))
        return np.asarray(x)

    for k, result in enumerate(in_threads(work)):
        np.testing.assert_array_equal(result, np.full((N, 4), k + 5))


class Big:
    """Something a closure may hold on to."""


def mapped_and_watched(call, **options):
    """A pmapped function after a call, and weak references to what must go with it."""
    held = Big()

    def fun(x):
        assert held is not None
        return x + 1

    mapped = pmapx.pmap(fun, **options)
    call(mapped)
    return mapped, [weakref.ref(held), weakref.ref(fun), weakref.ref(mapped)]


def fail(mapped):
    with pytest.raises(pmapx.PmapxError):
        mapped(np.float32(1))


USES = {
    "never called": lambda mapped: None,
    "called": lambda mapped: mapped(rows(1)),
    "called with numpy": lambda mapped: mapped(np.ones((N, 2), np.float32)),
    "called with a misplaced array": lambda mapped: mapped(
        jax.device_put(np.ones((N, 2), np.float32), jax.devices()[-1])
    ),
    "lowered": lambda mapped: mapped.lower(rows(1)).compile(),
    "traced": lambda mapped: mapped.trace(rows(1)),
    "evaluated abstractly": lambda mapped: mapped.eval_shape(rows(1)),
    "inside jit": lambda mapped: jax.jit(lambda x: mapped(x))(rows(1)),
    "differentiated": lambda mapped: jax.grad(lambda x: mapped(x).sum())(rows(1)),
    "cleared": lambda mapped: (mapped(rows(1)), mapped.clear_cache()),
    "failed": lambda mapped: fail(mapped),
}


@pytest.mark.behaviour("A18")
@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_dropped_function_is_freed_with_its_closure(use):
    mapped, watched = mapped_and_watched(use)

    del mapped
    gc.collect()

    assert [ref() for ref in watched] == [None, None, None]


@pytest.mark.behaviour("A18")
def test_a_closed_over_array_is_freed():
    def mapped_over_a_table():
        table = jnp.arange(10.0)
        return pmapx.pmap(lambda x: x + table[0]), weakref.ref(table)

    mapped, watched = mapped_over_a_table()
    mapped(rows(1))

    del mapped
    gc.collect()

    assert watched() is None


@pytest.mark.behaviour("A18")
def test_inputs_and_outputs_are_not_held():
    mapped = pmapx.pmap(lambda x: x + 1)
    x = rows(1)
    y = mapped(x)
    watched = [weakref.ref(x), weakref.ref(y)]

    del x, y
    gc.collect()

    assert [ref() for ref in watched] == [None, None]
    np.testing.assert_array_equal(mapped(rows(2)), np.full((N, 4), 3))


@pytest.mark.behaviour("A18")
def test_a_moved_input_is_not_held(devices):
    mapped = pmapx.pmap(lambda x: x + 1)
    x = jax.device_put(np.ones((N, 4), np.float32), devices[-1])
    mapped(x)
    watched = weakref.ref(x)

    del x
    gc.collect()

    assert watched() is None


@pytest.mark.behaviour("A18")
def test_a_pmapped_method_frees_its_object():
    class Trainer:
        def __init__(self):
            self.step = pmapx.pmap(self._step)

        def _step(self, x):
            return x + 1

    trainer = Trainer()
    trainer.step(rows(1))
    watched = weakref.ref(trainer)

    del trainer
    gc.collect()

    assert watched() is None


@pytest.mark.behaviour("A18")
def test_nested_functions_are_freed():
    inner = pmapx.pmap(lambda x: x + lax.axis_index("j"), "j")
    outer = pmapx.pmap(inner, "i")
    outer(np.ones((1, N), np.float32))
    watched = [weakref.ref(inner), weakref.ref(outer)]

    del inner, outer
    gc.collect()

    assert [ref() for ref in watched] == [None, None]


@pytest.mark.behaviour("A18")
def test_a_result_outlives_its_function():
    mapped = pmapx.pmap(lambda x: x + 1)
    result = mapped(rows(1))

    del mapped
    gc.collect()

    np.testing.assert_array_equal(result, np.full((N, 4), 2))
