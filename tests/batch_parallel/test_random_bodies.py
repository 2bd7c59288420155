"""Random bodies: what is claimed to be a function of the global batch equals the map."""

import os

import hypothesis.strategies as st
import jax
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import drawn_bodies
from global_batch import assert_close, global_arguments, global_results, verdict_of
from pmapx._src.batch_parallel import interpreter
from pmapx._src.batch_parallel.global_function import global_function

AXES = (None, 0, 0)
EXAMPLES = int(os.environ.get("PMAPX_EXAMPLES", "0"))
SIZES = st.sampled_from([(2, 2), (2, 4), (4, 2), (3, 4), (4, 1), (2, 3)])
# Bodies that are compiled as one program, which takes a third of the time of one each.
TOGETHER = 10


def claims_hold(drawn, n, b):
    """Checks what is claimed of bodies; returns for each whether it is of the global batch."""
    claimed = {}
    for each in drawn:
        body = drawn_bodies.body_of(each)
        verdict = verdict_of(body, drawn_bodies.inputs(n, b, 0), AXES, n)
        assert verdict.is_batch_parallel or verdict.reasons
        assert not any(interpreter.NOT_UNDERSTOOD in str(reason) for reason in verdict.reasons)
        if verdict.is_batch_parallel:
            mapped = jax.vmap(body, in_axes=AXES, axis_name=drawn_bodies.AXIS, axis_size=n)
            claimed[each] = verdict, mapped, global_function(verdict)

    @jax.jit
    def run(arguments, whole):
        return [(mapped(*arguments), ours(*whole)) for _, mapped, ours in claimed.values()]

    for seed in (0, 1) if claimed else ():
        arguments = drawn_bodies.inputs(n, b, seed)
        outputs = jax.device_get(run(arguments, global_arguments(arguments, AXES)))
        for (each, (verdict, *_)), (results, found) in zip(claimed.items(), outputs, strict=True):
            try:
                expected = global_results(verdict, results)
                assert_close(expected, jax.tree.leaves(found), length=n * b * 64)
            except AssertionError as error:
                error.add_note(f"the body: {each}")
                raise
    return [each in claimed for each in drawn]


def check_random_bodies(count):
    claims = []

    @settings(
        max_examples=(EXAMPLES or count) // TOGETHER,
        deadline=None,
        derandomize=not EXAMPLES,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(st.lists(drawn_bodies.bodies(), min_size=TOGETHER, max_size=TOGETHER), SIZES)
    def check(drawn, sizes):
        claims.extend(claims_hold(drawn, *sizes))

    check()
    assert len(claims) >= count
    assert count // 4 < claims.count(True) < len(claims) - count // 4


def test_wrong_claim_is_found_by_running_it(monkeypatch):
    drawn = ((("mean", 1), ("tanh", 3)), (4,), "pmean of means")
    assert claims_hold([drawn], 4, 2) == [False]
    monkeypatch.setitem(interpreter.RULES, "tanh", lambda step: step.kinds[0])
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        claims_hold([drawn], 4, 2)


def test_what_is_claimed_of_random_bodies_holds():
    check_random_bodies(100)


@pytest.mark.slow
def test_what_is_claimed_of_many_random_bodies_holds():
    check_random_bodies(2000)
