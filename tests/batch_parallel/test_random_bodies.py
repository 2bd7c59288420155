"""Random bodies: what is claimed to be a function of the global batch equals the map."""

import os

import hypothesis.strategies as st
import jax
import pytest
from hypothesis import HealthCheck, Phase, assume, event, given, settings

import drawn_bodies
from global_batch import assert_close, run_both, verdict_of
from pmapx._src.batch_parallel import interpreter

AXES = (None, 0, 0)
EXAMPLES = int(os.environ.get("PMAPX_EXAMPLES", "0"))


def claims_hold(drawn, n, b):
    body = drawn_bodies.body_of(drawn)
    arguments = drawn_bodies.inputs(n, b, 0)
    try:
        jax.eval_shape(jax.vmap(body, in_axes=AXES, axis_name="i", axis_size=n), *arguments)
    except (TypeError, ValueError, ZeroDivisionError, IndexError):
        assume(False)  # Shapes that do not fit.
    verdict = verdict_of(body, arguments, AXES, n)
    assert verdict.is_batch_parallel or verdict.reasons
    assert not any(interpreter.NOT_UNDERSTOOD in str(reason) for reason in verdict.reasons)
    if not verdict.is_batch_parallel:
        return False
    mapped = jax.jit(jax.vmap(body, in_axes=AXES, axis_name=drawn_bodies.AXIS, axis_size=n))
    for seed in (0, 1):
        arguments = drawn_bodies.inputs(n, b, seed)
        expected, found = run_both(verdict, body, arguments, AXES, mapped)
        assert_close(expected, found, length=n * b * 64)
    return True


def settings_for(count):
    return settings(
        max_examples=EXAMPLES or count,
        deadline=None,
        derandomize=not EXAMPLES,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )


def test_wrong_claim_is_found_by_running_it(monkeypatch):
    drawn = ((("mean", 1), ("tanh", 3)), (4,), "pmean of means")
    assert not claims_hold(drawn, 4, 2)
    monkeypatch.setitem(interpreter.RULES, "tanh", lambda step: step.kinds[0])
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        claims_hold(drawn, 4, 2)


SIZES = st.sampled_from([(2, 2), (2, 4), (4, 2), (3, 4), (4, 1), (2, 3)])


@settings_for(60)
@given(drawn_bodies.bodies(), SIZES)
def test_what_is_claimed_of_random_bodies_holds(drawn, sizes):
    event(f"a function of the global batch: {claims_hold(drawn, *sizes)}")


@pytest.mark.slow
@settings_for(600)
@given(drawn_bodies.bodies(), SIZES)
def test_what_is_claimed_of_many_random_bodies_holds(drawn, sizes):
    event(f"a function of the global batch: {claims_hold(drawn, *sizes)}")
