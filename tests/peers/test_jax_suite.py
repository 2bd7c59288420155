"""JAX's own `tests/pmap_test.py`, with pmapx in the place of `jax.pmap`.

PMAPX_JAX_CHECKOUT names a checkout of JAX at the tag of the JAX that is installed.
"""

import os
from pathlib import Path

import jax
import jax_suite
import pytest

pytestmark = pytest.mark.slow

CHECKOUT = os.environ.get("PMAPX_JAX_CHECKOUT")

# What jax.pmap passes at the tag jax-v0.10.2 on 8 CPU devices, of 288 tests; 22 are skipped there.
PASSED_BY_JAX = {"0.10.2": 266}

# Skipped there, and passed by pmapx once the skip is taken out.
NESTED = {
    "testNestedPmaps",
    "testNestedPmapsBools",
    "testBadAxisSizeErrorNested",
    "testNestedPmapsError",
}

# Tests that fail, and the reason.
EXCEPTIONS = {
    "PythonPmapTest.testLowerCompileArgTypeMismatch": (
        "wants an argument to be called flat_args[0], a name inside jax.pmap; ours calls it x"
    ),
    "PmapWithDevicesTest.testNoDevicesError": (
        "wants the error when the function is mapped; as with the original, it comes with the call"
    ),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The names of JAX's tests by outcome: passed, failed, skipped; as Class.test."""
    if not CHECKOUT:
        pytest.skip("PMAPX_JAX_CHECKOUT is not set: it names a checkout of JAX to run")
    suite = Path(CHECKOUT) / "tests" / "pmap_test.py"
    if not suite.is_file():
        pytest.fail(f"PMAPX_JAX_CHECKOUT={CHECKOUT} has no tests/pmap_test.py")
    if jax.device_count() != 8:
        pytest.skip(f"JAX's counts are for 8 devices, {jax.device_count()} are there")
    return jax_suite.run(suite.resolve(), tmp_path_factory.mktemp("jax_suite"))


def test_nothing_fails_but_the_named_exceptions(outcomes):
    assert outcomes["failed"] == set(EXCEPTIONS), outcomes["output"][-6000:]


def test_there_are_fewer_than_five_exceptions():
    assert len(EXCEPTIONS) < 5
    assert all(EXCEPTIONS.values())


def test_the_nested_tests_that_jax_skips_pass(outcomes):
    passed = {name.rsplit(".", 1)[-1] for name in outcomes["passed"]}

    assert passed >= NESTED


def test_as_many_pass_as_with_jax_pmap(outcomes):
    if jax.__version__ not in PASSED_BY_JAX:
        pytest.skip(f"the count is not known for JAX {jax.__version__}")
    nested = {name for name in outcomes["passed"] if name.rsplit(".", 1)[-1] in NESTED}

    assert len(nested) >= len(NESTED)
    passed_there_too = len(outcomes["passed"] - nested)
    assert passed_there_too + len(EXCEPTIONS) == PASSED_BY_JAX[jax.__version__]
