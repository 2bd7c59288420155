"""Kinds of training steps: what each means over the global batch, and that it does."""

import pytest

import batch_bodies
import pmapx
from global_batch import assert_close, run_both, verdict_of

N = 8


@pytest.mark.needs_devices(N)
@pytest.mark.parametrize("case", batch_bodies.PARALLEL, ids=repr)
def test_body_that_is_a_function_of_the_global_batch_equals_it(case):
    arguments, axes = case.arguments(N)

    verdict = verdict_of(case.body, arguments, axes, N)

    assert verdict.is_batch_parallel, [str(reason) for reason in verdict.reasons]
    in_axes = tuple(None if axis is None else 0 for axis in axes)
    mapped = pmapx.pmap(case.body, axis_name=batch_bodies.AXIS, in_axes=in_axes)
    expected, found = run_both(verdict, arguments, axes, mapped)
    assert_close(expected, found, length=N * batch_bodies.B * 8)


@pytest.mark.parametrize("case", batch_bodies.BY_DEVICE, ids=repr)
def test_body_that_depends_on_devices_is_rejected_with_the_operation_and_the_reason(case):
    arguments, axes = case.arguments(N)

    verdict = verdict_of(case.body, arguments, axes, N)

    assert not verdict.is_batch_parallel
    reasons = [str(reason) for reason in verdict.reasons]
    assert any(case.operation in reason and case.why in reason for reason in reasons), reasons
