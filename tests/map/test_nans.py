"""Settings for debugging name the user's operation: debug_nans, checking_leaks (A15)."""

import gc
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pmapx
from pmapx._src import fastpath

N = jax.device_count()
X = np.arange(N, dtype=np.float32)


def log_of_negative(x):
    shifted = x - N
    return jnp.log(shifted)  # to blame


def blamed(error):
    """The line of this file that a traceback ends in."""
    return [frame.line for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == __file__][-1]  # fmt: skip


@pytest.mark.behaviour("A15")
@pytest.mark.parametrize("is_called_before", [True, False])
def test_debug_nans_names_the_operation(is_called_before):
    mapped = pmapx.pmap(log_of_negative)
    for _ in range(2 * is_called_before):
        mapped(X)

    for _ in range(2):
        with jax.debug_nans(True), pytest.raises(FloatingPointError, match="in log") as raised:
            mapped(X)
        assert "to blame" in blamed(raised.value)


@pytest.mark.behaviour("A15")
def test_debug_infs_names_the_operation():
    def fun(x):
        return 1 / (x - x)  # to blame

    with jax.debug_infs(True), pytest.raises(FloatingPointError, match="in div") as raised:
        pmapx.pmap(fun)(X)
    assert "to blame" in blamed(raised.value)


@pytest.mark.behaviour("A15")
def test_debug_nans_does_not_blame_what_reads_a_nan_of_the_input():
    x = np.full(N, np.nan, np.float32)

    def fun(x):
        cleaned = jnp.where(jnp.isnan(x), -1.0, x)
        return jnp.log(cleaned)  # to blame

    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="in log") as raised:
        pmapx.pmap(fun)(x)
    assert "to blame" in blamed(raised.value)


@pytest.mark.behaviour("A15")
def test_debug_nans_raises_when_the_input_comes_back():
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="<lambda>"):
        pmapx.pmap(lambda x: x)(np.full(N, np.nan, np.float32))


@pytest.mark.behaviour("A15")
def test_debug_nans_finds_operations_around_collectives_and_in_pmaps_inside():
    def fun(x):
        inner = pmapx.pmap(log_of_negative, axis_name="j")
        return inner(lax.pmean(x, "i")[None])

    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="in log") as raised:
        pmapx.pmap(fun, axis_name="i")(X)
    assert "to blame" in blamed(raised.value)


@pytest.mark.behaviour("A15")
def test_debug_nans_with_donated_and_static_arguments():
    def fun(power, x):
        return x**power

    mapped = pmapx.pmap(fun, static_broadcasted_argnums=0, donate_argnums=1)
    mapped(2, jnp.asarray(X))

    with jax.debug_nans(True):
        np.testing.assert_array_equal(mapped(2, jnp.asarray(X)), X**2)
        with pytest.raises(FloatingPointError, match="pow"):
            mapped(0.5, jnp.asarray(X - N))


@pytest.mark.behaviour("A15")
def test_nans_of_types_that_numpy_does_not_have_are_found():
    with jax.debug_nans(True):
        pmapx.pmap(lambda x: x + 1)(X.astype(jnp.bfloat16))
        with pytest.raises(FloatingPointError):
            pmapx.pmap(log_of_negative)(X.astype(jnp.bfloat16))


@pytest.mark.behaviour("A15")
def test_checking_leaks_names_the_function_and_its_file():
    # JAX searches all objects for what holds the tracer; none that exists already does.
    gc.collect()
    gc.freeze()
    leaked = []

    def leaks_a_tracer(x):
        leaked.append(x * 2)
        return x

    with jax.checking_leaks(), pytest.raises(Exception, match="Leaked") as raised:
        pmapx.pmap(leaks_a_tracer)(X)

    assert f"leaks_a_tracer at {__file__}" in str(raised.value)
    assert "pmapx/" not in str(raised.value).replace(__file__, "")


@pytest.mark.behaviour("A15")
@pytest.mark.skipif(not fastpath.HAS_HIDDEN_FRAMES, reason="public JAX shows all frames")
def test_a_traceback_hides_what_is_between_the_trace_and_the_users_function(run_python):
    code = """
import traceback, jax, numpy as np, pmapx
def fails(x):
    raise KeyError("mine")
try:
    pmapx.pmap(fails)(np.ones(1))
except KeyError as error:
    print(*(frame.filename for frame in traceback.extract_tb(error.__traceback__)))
"""
    files = run_python(code, JAX_TRACEBACK_FILTERING="remove_frames").split()

    assert files[0] == files[-1] == "<string>"
    assert not any(file.endswith("element.py") for file in files)
