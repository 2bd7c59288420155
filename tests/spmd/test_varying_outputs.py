"""`out_axes=None` on a value that differs between devices: the first value, and a warning (A5)."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

import pmapx
from oracle import assert_same

pytestmark = pytest.mark.behaviour("A5")

N = jax.device_count()
X = jnp.arange(1.0, N + 1)


@pytest.fixture(autouse=True)
def _two_devices_or_nothing_can_vary():
    if N == 1:
        pytest.skip("needs 2 devices, 1 is there: nothing can vary")


def assert_silent(mapped, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return mapped(*args)


def test_the_first_value_comes_back_and_the_output_is_named():
    def fun(x):
        return {"mean": lax.pmean(x, "i"), "loss": 2 * x}

    with pytest.warns(pmapx.PmapxWarning) as warned:
        result = pmapx.pmap(fun, "i", out_axes=None)(X)

    assert [w.message.code for w in warned] == ["PMX903"]
    assert "['loss']" in str(warned[0].message)
    assert "['mean']" not in str(warned[0].message)
    assert_same(result, {"mean": X.mean(), "loss": 2 * X[0]})


def test_the_whole_output_is_named_when_there_is_only_one():
    with pytest.warns(pmapx.PmapxWarning, match="PMX903") as warned:
        result = pmapx.pmap(lambda x: x + 1, out_axes=None)(X)

    assert "out_axes" in str(warned[0].message)
    assert_same(result, X[0] + 1)


def test_the_warning_points_at_the_callers_line():
    mapped = pmapx.pmap(lambda x: x + 1, out_axes=None)

    with pytest.warns(pmapx.PmapxWarning) as warned:
        mapped(X)

    assert warned[0].filename == __file__


def test_it_warns_once_a_function():
    mapped = pmapx.pmap(lambda x: x + 1, out_axes=None)

    with pytest.warns(pmapx.PmapxWarning, match="PMX903"):
        mapped(X)

    assert_same(assert_silent(mapped, X), X[0] + 1)
    assert_silent(mapped, jnp.ones((N, 3)))


def test_a_prefix_names_only_the_outputs_without_an_axis():
    def fun(x):
        return (x, {"a": x}), x

    with pytest.warns(pmapx.PmapxWarning) as warned:
        pmapx.pmap(fun, out_axes=((0, None), 0))(X)

    assert "['a']" in str(warned[0].message)
    assert len(warned) == 1


SAME_EVERYWHERE = {
    "psum": lambda x, w: lax.psum(x, "i"),
    "pmean": lambda x, w: lax.pmean(x, "i") * 2,
    "pmax": lambda x, w: lax.pmax(x, "i"),
    "pmin": lambda x, w: jnp.sin(lax.pmin(x, "i")),
    "all_gather": lambda x, w: lax.all_gather(x, "i").sum(),
    "unmapped argument": lambda x, w: w * 2,
    "constant": lambda x, w: jnp.float32(3),
    "axis size": lambda x, w: lax.axis_size("i") * w,
    "inside jit": lambda x, w: jax.jit(lambda x: lax.psum(x, "i"))(x),
    "inside scan": lambda x, w: lax.scan(
        lambda c, _: (c + lax.psum(x, "i"), None), w, None, length=2
    )[0],
    "inside cond": lambda x, w: lax.cond(w > 0, lambda: lax.psum(x, "i"), lambda: lax.pmax(x, "i")),
    "a gradient summed": lambda x, w: lax.psum(jax.grad(lambda w: w * x)(w), "i"),
}


@pytest.mark.parametrize("fun", SAME_EVERYWHERE.values(), ids=SAME_EVERYWHERE.keys())
def test_a_value_that_is_the_same_everywhere_is_taken_in_silence(fun):
    mapped = pmapx.pmap(fun, "i", in_axes=(0, None), out_axes=None)

    assert np.isfinite(assert_silent(mapped, X, jnp.float32(2)))


DIFFERS = {
    "mapped argument": lambda x, w: x,
    "arithmetic with one": lambda x, w: w + x,
    "axis index": lambda x, w: w + lax.axis_index("i"),
    "psum plus own": lambda x, w: lax.psum(x, "i") + x,
    "groups": lambda x, w: lax.psum(
        x,
        "i",
        axis_index_groups=[[k] for k in range(N)]
        if N % 2
        else [list(range(N // 2)), list(range(N // 2, N))],
    ),
    "ppermute": lambda x, w: lax.ppermute(x, "i", [(k, (k + 1) % N) for k in range(N)]),
    "psum_scatter": lambda x, w: lax.psum_scatter(jnp.full(N, w) * jnp.arange(N), "i"),
    "scan that mixes it in late": lambda x, w: lax.scan(
        lambda c, _: ((c[1], x), None), (w, w), None, length=2
    )[0][0],
    "cond on own value": lambda x, w: lax.cond(x > 1, lambda: w, lambda: -w),
    "while on own value": lambda x, w: lax.while_loop(lambda c: c < x, lambda c: c + 1, w * 0),
    "inside jit": lambda x, w: jax.jit(lambda x: x * 2)(x),
    "a gradient not summed": lambda x, w: jax.grad(lambda w: w * x)(w),
}


@pytest.mark.parametrize("fun", DIFFERS.values(), ids=DIFFERS.keys())
def test_a_value_that_differs_is_found(fun):
    mapped = pmapx.pmap(fun, "i", in_axes=(0, None), out_axes=None)

    with pytest.warns(pmapx.PmapxWarning, match="PMX903"):
        mapped(X, jnp.float32(2))


def test_keys_that_differ_are_found():
    keys = jax.random.split(jax.random.key(0), N)

    with pytest.warns(pmapx.PmapxWarning, match="PMX903"):
        result = pmapx.pmap(lambda key: key, out_axes=None)(keys)

    assert_same(result, keys[0])


def test_the_gradient_is_that_of_the_value_that_came_back():
    mapped = pmapx.pmap(lambda x: x * x, out_axes=None)

    with pytest.warns(pmapx.PmapxWarning, match="PMX903"):
        value, gradient = jax.value_and_grad(mapped)(X)

    assert_same(value, X[0] ** 2)
    np.testing.assert_array_equal(gradient, [2 * X[0]] + [0] * (N - 1))


def test_the_warning_comes_under_jit_too():
    with pytest.warns(pmapx.PmapxWarning, match="PMX903"):
        result = jax.jit(pmapx.pmap(lambda x: x + 1, out_axes=None))(X)

    np.testing.assert_array_equal(result, X[0] + 1)


def test_a_warning_made_an_error_leaves_the_function_usable():
    mapped = pmapx.pmap(lambda x: x + 1, out_axes=None)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(pmapx.PmapxWarning):
            mapped(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(mapped(X), X[0] + 1)


@pytest.mark.needs_devices(2)
def test_the_warning_names_the_argument_and_its_leaf():
    def step(state, batch):
        return state["w"] + batch["image"]["mean"]

    rows = np.ones((jax.device_count(), 3))
    with pytest.warns(
        pmapx.PmapxWarning, match=r"since argument 1 'batch' at \['image'\]\['mean'\]"
    ):
        pmapx.pmap(step, in_axes=(None, 0), out_axes=None)({"w": 1.0}, {"image": {"mean": rows}})


def test_a_primitive_of_a_library_on_replicated_values_gives_no_warning():
    doubled = Primitive("doubled")
    doubled.def_abstract_eval(lambda x: x)
    mlir.register_lowering(doubled, mlir.lower_fun(lambda x: 2 * x, multiple_results=False))

    total = assert_silent(
        pmapx.pmap(lambda x: doubled.bind(lax.psum(x, "i")), "i", out_axes=None), X
    )

    assert_same(total, 2 * X.sum())


@pytest.mark.needs_devices(2)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["called", "inside jit"])
def test_where_warnings_of_pmapx_are_errors_each_call_raises(wrap):
    mapped = wrap(pmapx.pmap(lambda x: x + 1, out_axes=None))

    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error", pmapx.PmapxWarning)
            with pytest.raises(pmapx.PmapxWarning, match="PMX903"):
                mapped(X)


STRICT = """
import warnings, jax, numpy as np, pmapx
x = np.arange(float(jax.device_count()), dtype=np.float32)
warnings.filterwarnings("error", category=Warning)
print(pmapx.pmap(lambda x: x + 1, out_axes=None)(x))
with pmapx.install():
    print(jax.pmap(lambda x: x + 2, out_axes=None)(x))
"""


@pytest.mark.needs_devices(2)
def test_where_all_warnings_are_errors_the_program_runs_on_and_the_warning_is_shown(run_python):
    assert run_python(STRICT).split() == ["1.0", "2.0"]
    shown = run_python("import sys; sys.stderr = sys.stdout" + STRICT)
    assert shown.count("PMX903 (") == 2
    assert "<string>:" in shown
