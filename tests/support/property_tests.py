"""Property tests: how many examples Hypothesis draws, in `make test` and among the slow tests.

PMAPX_EXAMPLES=N draws N examples in all instead: the same ones every time up to 540, and others at
random beyond.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings

USUAL, MANY = 360, 540
TOTALS = [
    pytest.param(USUAL, id="usual"),
    pytest.param(MANY, id="many", marks=pytest.mark.slow),
]
if asked := os.environ.get("PMAPX_EXAMPLES"):
    TOTALS = [int(asked)]


def property_test(share, **strategies):
    """Turn a function of drawn arguments into a test with `share` per cent of all examples."""

    def test_of(function):
        @pytest.mark.parametrize("total", TOTALS)
        def test(total):
            drawn = settings(
                max_examples=max(1, round(total * share / 100)),
                derandomize=total <= MANY,
                database=None,
                deadline=None,
                print_blob=True,
                # To shrink takes minutes; a case is small, and printed in full.
                phases=[Phase.explicit, Phase.generate] + [Phase.shrink] * (total > MANY),
                suppress_health_check=list(HealthCheck),
            )
            drawn(given(**strategies)(function))()

        test.__name__, test.__doc__ = function.__name__, function.__doc__
        return test

    return test_of
