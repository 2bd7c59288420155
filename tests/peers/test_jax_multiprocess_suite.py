"""JAX's own `tests/multiprocess/pmap_test.py` in 2 processes, with pmapx installed in each.

PMAPX_JAX_CHECKOUT names a checkout of JAX at the tag of the JAX that is installed.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pmapx

pytestmark = pytest.mark.slow

CHECKOUT = os.environ.get("PMAPX_JAX_CHECKOUT")
INSTALL = "import pmapx; pmapx.install()"

EXCEPTIONS = {
    "test_pmap_with_float0": "wants bool for float0 in several processes; ours stays float0",
    "test_global_axis_size_initial_style": (
        "traces with one process's rows; inside a trace pmapx's rows are those of all processes"
    ),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The names of JAX's tests by outcome, OK or FAILED, in all processes together."""
    if not CHECKOUT:
        pytest.skip("PMAPX_JAX_CHECKOUT is not set: it names a checkout of JAX to run")
    suite = Path(CHECKOUT) / "tests" / "multiprocess" / "pmap_test.py"
    if not suite.is_file():
        pytest.skip(f"PMAPX_JAX_CHECKOUT={CHECKOUT} has no tests/multiprocess/pmap_test.py")
    folder = tmp_path_factory.mktemp("multiprocess")
    (folder / "sitecustomize.py").write_text(INSTALL)  # Run first in every process.
    paths = [str(folder), str(Path(pmapx.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, str(suite), "--num_processes=2", "--cpu_collectives_implementation=gloo"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "JAX_PLATFORMS": "cpu",
            "TEST_UNDECLARED_OUTPUTS_DIR": str(folder),  # A log for each process.
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    found = {"OK": [], "FAILED": [], "output": done.stdout}
    for outcome, name in re.findall(r"\[ +(OK|FAILED) +\] \w+\.(\w+)", done.stdout):
        found[outcome].append(name)
    return found


def test_nothing_fails_but_the_named_exceptions(outcomes):
    assert set(outcomes["FAILED"]) == set(EXCEPTIONS), outcomes["output"][-6000:]


def test_every_other_test_passes_in_both_processes(outcomes):
    assert len(outcomes["OK"]) == 2 * len(set(outcomes["OK"])) >= 16
