"""Runs `tests/pmap_test.py` of a JAX checkout, and tells what became of each test."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pmapx

HERE = Path(__file__).parent

# The original's tests, of which the other classes are about private parts of JAX that are gone.
ORIGINAL_CLASSES = (
    *("CppPmapTest", "PmapWithDevicesTest", "VmapOfPmapTest"),
    *("VmapPmapCollectivesTest", "ArrayPmapTest"),
)


def run(suite, folder, *, with_pmapx=True):
    """The names of JAX's tests by outcome: passed, failed, skipped, as Class.test; and the output.

    Without pmapx it is the suite as it is, on `jax.pmap`.
    """
    plugin = ["-p", "pmapx_for_jax_pmap"] if with_pmapx else []
    return _outcomes([*plugin, str(suite)], folder)


def run_original(suite, folder, pmap="install"):
    """The same for the tests of JAX 0.7.2; `pmap` is "jax", "pmapx", or "install" for all of it."""
    tests = [f"{suite}::{name}" for name in ORIGINAL_CLASSES]
    return _outcomes(["-p", "original_names", *tests], folder, ORIGINAL_SUITE_PMAP=pmap)


def _outcomes(arguments, folder, **environment):
    report = Path(folder) / "report.xml"
    paths = os.pathsep.join([str(HERE), str(Path(pmapx.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--noconftest"]
        + ["-c", os.devnull, "-p", "no:cacheprovider", "-W", "ignore", "--tb=short"]
        + [f"--junit-xml={report}", *arguments],
        cwd=folder,
        env={**os.environ, **environment, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert report.is_file(), done.stdout[-3000:] + done.stderr[-3000:]
    found = {"passed": set(), "failed": set(), "skipped": set()}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname').rsplit('.', 1)[-1]}.{case.get('name')}"
        kinds = {child.tag for child in case}
        outcome = "skipped" if "skipped" in kinds else "failed" if kinds else "passed"
        found[outcome].add(name)
    return found | {"output": done.stdout}
