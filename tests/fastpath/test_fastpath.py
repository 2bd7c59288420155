"""Private JAX: probed at first use, and given up for public JAX when it is not as expected."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmapx
from pmapx._src import fastpath
from pmapx._src.cli import _about
from pmapx._src.fastpath import dispatch, probes, tracing

N = jax.device_count()
X = np.arange(2.0 * N, dtype=np.float32).reshape(N, 2)

only_private = pytest.mark.skipif(
    probes.PUBLIC_ONLY, reason="nothing private is used on public JAX alone"
)


def run_hidden_names(which, timeout):
    root = str(Path(pmapx.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "support" / "hidden_names.py"), which],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


@only_private
def test_the_core_runs_on_a_jax_that_hides_every_private_name():
    run_hidden_names("all", timeout=240)


@only_private
@pytest.mark.slow
def test_the_core_runs_with_each_private_name_missing_or_changed_in_turn():
    run_hidden_names("each", timeout=1500)


@pytest.fixture
def unprobed(monkeypatch):
    """Returns a function that gives the piece another probe, to run at its next use."""

    def reset(piece, probe):
        monkeypatch.setattr(piece, "_probe", probe)
        monkeypatch.setattr(piece, "_usable", None)
        monkeypatch.setattr(piece, "reason", None)

    return reset


def fails(*args):
    raise AttributeError("no such thing")


@only_private
def test_a_probe_that_fails_warns_once_and_the_result_is_right(unprobed):
    unprobed(dispatch.PROGRAMS, fails)
    double = pmapx.pmap(lambda x: x * 2, donate_argnums=0)

    with pytest.warns(pmapx.errors.FastPathUnavailable, match="no such thing") as caught:
        results = [double(jnp.asarray(X)) for _ in range(3)]

    for result in results:
        np.testing.assert_array_equal(result, X * 2)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert double.cache_info().compiles == 1


@only_private
def test_a_result_is_kept_when_what_follows_the_call_fails(monkeypatch, unprobed):
    """The donated input is gone by then."""
    unprobed(dispatch.PROGRAMS, lambda near: None)
    monkeypatch.setattr(dispatch, "data_of", fails)
    double = pmapx.pmap(lambda x: x * 2, donate_argnums=0)
    state = pmapx.pmap(lambda x: x)(X)

    with pytest.warns(pmapx.errors.FastPathUnavailable):
        state = double(double(double(state)))

    np.testing.assert_array_equal(state, X * 8)
    assert not dispatch.PROGRAMS.is_usable()


@only_private
def test_where_warnings_are_errors_the_next_call_raises_before_it_runs(unprobed):
    x = pmapx.pmap(lambda x: x)(X)
    unprobed(dispatch.PROGRAMS, fails)
    double = pmapx.pmap(lambda x: x * 2, donate_argnums=0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = double(x)
        with pytest.raises(pmapx.errors.FastPathUnavailable):
            double(state)

    assert not state.is_deleted()
    np.testing.assert_array_equal(double(state), X * 4)


@only_private
def test_a_dispatch_that_cannot_be_made_is_replaced_by_public_jax(monkeypatch, unprobed):
    unprobed(dispatch.DISPATCH, lambda: None)
    monkeypatch.setattr(dispatch, "make_dispatch", fails)

    with pytest.warns(pmapx.errors.FastPathUnavailable) as caught:
        functions = [pmapx.pmap(lambda x, n: x * n, static_broadcasted_argnums=1) for _ in range(2)]

    assert len(caught) == 1
    for function in functions:
        for n in (2, 3, 2):
            np.testing.assert_array_equal(function(X, n), X * n)


FIRST_CALL = """
import contextlib, jax, numpy as np, pmapx
from pmapx._src.fastpath import probes as pieces
n = jax.device_count()
x = np.ones((n, 2), np.float32)
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
contexts = [
    lambda: jax.debug_nans(True),
    lambda: jax.set_mesh(mesh),
    lambda: jax.disable_jit(),
    lambda: jax.transfer_guard("log"),
    lambda: jax.enable_x64(True),
    lambda: jax.default_device(jax.devices()[-1]),
    lambda: jax.numpy_dtype_promotion("strict"),
]
for context in contexts:
    for piece in pieces.PIECES:
        piece._usable = None
    with context():
        f = pmapx.pmap(lambda x: -x)
        f(x), f(x), pmapx.unreplicate(pmapx.replicate(x))
    f(x)
    jax.jit(lambda x: f(x))(x)
print({piece.name: piece.reason for piece in pieces.PIECES if piece.reason})
"""


@only_private
def test_what_surrounds_the_first_call_does_not_disturb_the_probes(run_python):
    assert run_python(FIRST_CALL).splitlines()[-1] == "{}"


STARTS_NOTHING = """
import jax, pmapx
f = pmapx.pmap(lambda x: -x, static_broadcasted_argnums=())
jax.config.update("jax_num_cpu_devices", 3)  # Refused once devices are there.
print(jax.device_count())
"""


def test_making_a_pmap_probes_nothing_that_starts_devices(run_python):
    assert run_python(STARTS_NOTHING, XLA_FLAGS="").split() == ["3"]


@only_private
def test_info_names_a_piece_that_is_not_in_use_and_why(unprobed):
    unprobed(dispatch.PROGRAMS, fails)

    in_use = fastpath.probed_pieces()
    shown = _about.as_text(
        {
            **{"versions": {}, "platform": "Linux", "devices": {"error": ""}, "cluster": None},
            **{"fastpath": in_use, "tools": {}, "frameworks": {}, "settings": {}},
        }
    )

    why = "AttributeError: no such thing"
    assert f"on, except programs run by the dispatch ({why})" in shown
    assert in_use["dispatch in C++"] is True


@only_private
def test_the_first_call_of_a_program_may_be_traced(unprobed):
    unprobed(tracing.TRACE_STATE, tracing._probe_trace_state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total = jax.jit(lambda x: pmapx.pmap(lambda y: y + 1)(x).sum())(X)
    assert tracing.TRACE_STATE.is_usable()
    assert total == X.sum() + X.size
