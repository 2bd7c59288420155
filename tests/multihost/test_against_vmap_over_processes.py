"""The property tests against `jax.vmap`, in two real processes."""

import pytest


@pytest.mark.slow
@pytest.mark.behaviour("E1")
@pytest.mark.parametrize(
    "case",
    [
        "case_drawn_calls_compute_what_vmap_computes",
        "case_drawn_oversubscribed_calls_compute_what_vmap_computes",
    ],
)
def test_drawn_programs_over_two_processes(case, outcomes):
    outcomes("property_cases", case, timeout=400)
