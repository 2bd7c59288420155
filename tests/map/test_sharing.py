"""Equal maps of one function: traced and compiled once, like equal jits of one function."""

import functools
import gc
import threading
import types
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmapx

N = jax.device_count()
ROWS = np.arange(4.0 * N, dtype=np.float32).reshape(N, 4)


def make_body():
    """Returns a function that notes each trace, and the notes."""
    traces = []

    def body(x):
        traces.append(1)
        return x * 2

    return body, traces


def test_a_map_that_is_made_and_called_at_once_is_traced_once():
    body, traces = make_body()
    rows = ROWS

    for _ in range(4):
        rows = pmapx.pmap(body, axis_name="i")(rows)

    np.testing.assert_array_equal(rows, ROWS * 16)
    assert len(traces) == 1


def test_at_once_inside_a_function_that_is_called_again():
    body, traces = make_body()

    def train(rows):  # As brax, say, does it in every evaluation.
        return jax.pmap(body, axis_name="i")(rows)

    with pmapx.install():
        for _ in range(3):
            train(ROWS)

    assert len(traces) == 1


def test_at_once_inside_jit_and_grad():
    body, traces = make_body()

    for _ in range(3):
        jax.grad(lambda x: pmapx.pmap(body)(x).sum())(ROWS)
        jax.make_jaxpr(lambda x: pmapx.pmap(body)(x))(ROWS)

    assert len(traces) <= 2  # Once to differentiate, once to run.


def test_each_map_counts_for_itself():
    body, _ = make_body()
    one, two = pmapx.pmap(body), pmapx.pmap(body)

    one(ROWS)
    two(ROWS)
    two(ROWS.astype(np.int32))

    info = one.cache_info(), two.cache_info()
    assert [(each.traces, each.compiles, each.calls) for each in info] == [(1, 1, 1), (1, 1, 2)]


def test_a_trace_counts_for_the_map_whose_call_led_to_it():
    body, traces = make_body()
    one, two = pmapx.pmap(body), pmapx.pmap(body)

    two(ROWS)
    one(ROWS)
    jax.jit(one)(ROWS.astype(np.int32))
    two.eval_shape(ROWS.astype(np.float16))

    assert len(traces) == 3
    assert (one.cache_info().traces, two.cache_info().traces) == (1, 2)


def test_a_trace_inside_another_counts_for_each_map_once():
    inner = pmapx.pmap(lambda x: x + 1, axis_name="j")
    outer = pmapx.pmap(lambda x: inner(x) * 2)
    of_inner = pmapx.pmap(inner)

    outer(ROWS[:1, :N])
    before = inner.cache_info().traces, outer.cache_info().traces
    of_inner(ROWS[:1, :N])

    assert before[0] >= 1
    assert before[1] >= 1
    assert inner.cache_info().traces > before[0]
    assert outer.cache_info().traces == before[1]
    assert of_inner.cache_info().traces >= 1


@pytest.mark.parametrize(
    "options",
    [
        {"axis_name": "j"},
        {"in_axes": 1, "axis_size": N},
        {"out_axes": 1},
        {"donate_argnums": 0},
        {"compiler_options": {"xla_embed_ir_in_executable": True}},
        {"reshard": "error"},
    ],
    ids=str,
)
def test_maps_with_other_options_share_nothing(options):
    body, traces = make_body()
    rows = np.ones((N, N), np.float32)
    pmapx.pmap(body)(rows)

    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pmapx.pmap(body, **options)(rows)

    assert len(traces) == 2


@pytest.mark.parametrize("in_axes", [({"a": 0, "b": None},), [{"a": 0, "b": None}]], ids=str)
def test_options_without_a_hash_are_compared_too(in_axes):
    traces = []

    def body(tree):
        traces.append(1)
        return tree["a"] + tree["b"]

    for _ in range(3):
        pmapx.pmap(body, in_axes=tuple(in_axes))({"a": ROWS, "b": np.float32(1)})

    assert len(traces) == 1


def test_equal_axis_names_of_different_type_do_not_share_a_program():
    body, _ = make_body()

    caches = [pmapx.pmap(body, axis_name=name)._pmapx.cache for name in (1, 1.0, True, 1)]

    assert len(set(map(id, caches))) == 3
    assert caches[0] is caches[3]


def test_a_wrapper_is_not_taken_for_what_it_wraps():
    body, _ = make_body()
    pmapx.pmap(body)(ROWS)

    @functools.wraps(body)
    def plus_one(x):
        return body(x) + 1

    np.testing.assert_array_equal(pmapx.pmap(plus_one)(ROWS), ROWS * 2 + 1)
    np.testing.assert_array_equal(pmapx.pmap(body)(ROWS), ROWS * 2)


def test_a_copy_of_a_function_is_another_function():
    def body(x):
        return x + number

    number = 1
    pmapx.pmap(body)(ROWS)
    other = types.FunctionType(body.__code__, body.__globals__, closure=(types.CellType(2),))
    other.__dict__.update(body.__dict__)

    np.testing.assert_array_equal(pmapx.pmap(other)(ROWS), ROWS + 2)


def test_methods_and_partials_are_mapped_each_for_itself():
    class Model:
        def __init__(self, scale):
            self.scale = scale

        def apply(self, x):
            return x * self.scale

    for scale in (2, 3):
        np.testing.assert_array_equal(pmapx.pmap(Model(scale).apply)(ROWS), ROWS * scale)
        scaled = functools.partial(lambda s, x: x * s, scale)
        np.testing.assert_array_equal(pmapx.pmap(scaled)(ROWS), ROWS * scale)


def test_static_arguments_at_once():
    traces = []

    def body(n, x):
        traces.append(n)
        return x * n

    for n in (2, 3, 2, 3):
        np.testing.assert_array_equal(
            pmapx.pmap(body, static_broadcasted_argnums=0)(n, ROWS), ROWS * n
        )

    assert traces == [2, 3]


def test_clear_cache_forgets_what_is_shared():
    body, traces = make_body()
    pmapx.pmap(body)(ROWS)

    pmapx.pmap(body).clear_cache()
    pmapx.pmap(body)(ROWS)

    assert len(traces) == 2


def test_jax_clear_caches_forgets_what_is_shared():
    body, traces = make_body()
    pmapx.pmap(body)(ROWS)

    jax.clear_caches()
    pmapx.pmap(body)(ROWS)

    assert len(traces) == 2


@pytest.mark.needs_devices(2)
def test_each_map_warns_for_itself():
    def body(x):
        return x * 2

    for _ in range(2):
        with pytest.warns(pmapx.PmapxWarning, match="out_axes=None"):
            pmapx.pmap(body, out_axes=None)(ROWS)


def test_a_function_that_is_gone_takes_its_programs_along():
    def body(x):
        return x * big.sum()

    big = np.ones(1000, np.float32)
    pmapx.pmap(body)(ROWS)
    gone = weakref.ref(body)

    del body
    gc.collect()

    assert gone() is None


def test_nothing_hangs_on_a_function_that_is_mapped():
    body, _ = make_body()
    pmapx.pmap(body)(ROWS)

    assert vars(body) == {}


def test_maps_made_in_several_threads_compile_once():
    body, traces = make_body()
    start = threading.Barrier(4)
    results = []

    def run():
        start.wait()
        results.append(np.asarray(pmapx.pmap(body)(ROWS)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(traces) == 1
    for result in results:
        np.testing.assert_array_equal(result, ROWS * 2)


def test_inner_pmaps_met_once_are_known_to_the_next_map():
    def inner(x):
        return x - jax.lax.pmean(x, "j")

    def outer(x):
        return pmapx.pmap(inner, axis_name="j")(x)

    rows = np.arange(2.0 * max(N // 2, 1) * 3).reshape(max(N // 2, 1), 2, 3)[:, : 2 if N > 1 else 1]
    expected = jnp.asarray(rows) - rows.mean(axis=1, keepdims=True)

    for _ in range(2):
        np.testing.assert_allclose(pmapx.pmap(outer)(rows), expected, rtol=1e-6)
