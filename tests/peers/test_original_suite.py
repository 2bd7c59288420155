"""The original's own tests: `tests/pmap_test.py` of JAX 0.7.2, on today's JAX with `install()`.

PMAPX_ORIGINAL_CHECKOUT names a checkout of JAX at the tag jax-v0.7.2.
"""

import os
from pathlib import Path

import jax
import jax_suite
import pytest

pytestmark = pytest.mark.slow

CHECKOUT = os.environ.get("PMAPX_ORIGINAL_CHECKOUT")
PASSED_AT_LEAST = 270

GONE = "asks for PmapSharding, which JAX has removed; results have a NamedSharding"
REPLICAS = "asks for mhlo.num_replicas; a program of jit and shard_map counts partitions"

# What fails, and the reason. Class is CppPmapTest unless named.
EXCEPTIONS = {
    "testArrays": GONE,
    "testPartiallyMapped": GONE,
    "testDefaultDeviceOrdering": GONE,
    "ArrayPmapTest.test_array_with_pmap_sharding_copy_without_round_trip": GONE,
    "testAxisGroups": "calls a private function of JAX with a class that JAX has removed",
    "testLowerHasReplicaAttributes": REPLICAS,
    "testJitOfPmapLowerHasReplicaAttributes": REPLICAS,
    "testJitOfPmapWarningMessage": (
        "wants a warning that a jit of a pmap may move data; a jit of pmapx does not"
    ),
    "testLowerCompileArgTypeMismatch": "wants an argument without a name; here it is called x",
    "testDeviceBufferToArray": (
        "wants a copy of x[-1] on the device of x[-1]; there that was the default device, to which "
        "JAX copies what is not committed, and here it is the device of the shard"
    ),
    "test_pmap_replicated_copy": (
        "wants a copy of an out_axes=None result on one device; today's JAX keeps its sharding"
    ),
    "PmapWithDevicesTest.testBadAxisSizeError": (
        "wants an error where the mapped axis is shorter than devices; here, as with today's "
        "jax.pmap, the first devices are used"
    ),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The names of the tests by outcome: passed, failed, skipped; as Class.test."""
    if not CHECKOUT:
        pytest.skip("PMAPX_ORIGINAL_CHECKOUT is not set: it names a checkout of JAX 0.7.2")
    suite = Path(CHECKOUT) / "tests" / "pmap_test.py"
    if not suite.is_file():
        pytest.fail(f"PMAPX_ORIGINAL_CHECKOUT={CHECKOUT} has no tests/pmap_test.py")
    if jax.device_count() != 8:
        pytest.skip(f"the counts are for 8 devices, {jax.device_count()} are there")
    return jax_suite.run_original(suite.resolve(), tmp_path_factory.mktemp("original_suite"))


def test_nothing_fails_but_the_named_exceptions(outcomes):
    named = {name if "." in name else f"CppPmapTest.{name}" for name in EXCEPTIONS}

    assert outcomes["failed"] == named, outcomes["output"][-6000:]


def test_as_many_pass_as_promised(outcomes):
    assert len(outcomes["passed"]) >= PASSED_AT_LEAST
