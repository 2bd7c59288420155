"""pytest --pmapx, in a project of its own."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pmapx
from virtual_devices import xla_flags

PROGRAM = """
import jax, numpy as np
from jax import lax

def update(w, x):
    return w - lax.pmean(x * w, "i")

def gathers(w, x):
    return w - lax.all_gather(x, "i").mean(0)

n = jax.device_count()
W, X = np.ones((n, 64), np.float32), np.arange(n * 64, dtype=np.float32).reshape(n, 64)
mesh = jax.sharding.Mesh(np.array(jax.devices()), "i")
rows = jax.sharding.PartitionSpec("i")
step = jax.jit(jax.shard_map(update, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
"""
TESTS = """
import jax, numpy as np, pmapx, pytest
from program import *

slow_step = pmapx.pmap(gathers, "i")

@pytest.mark.pmapx(compiles=1, collectives={"all-reduce": 1}, bytes="1KiB", memory="1MiB")
def test_within():
    step(W, X)
    step(W, X)

@pytest.mark.pmapx(collectives={"all-reduce": 1})
def test_gathers():
    slow_step(W, X)

@pytest.mark.pmapx(compiles=1)
def test_two_shapes():
    step(W, X)
    step(W[:, :32], X[:, :32])

@pytest.mark.pmapx(bytes="100B")
def test_bytes():
    step(W, X)

@pytest.mark.pmapx(memory=100)
def test_memory():
    step(W, X)

@pytest.mark.pmapx(bytes="1KiB")
def test_nothing():
    pass

@pytest.mark.pmapx(byte="1KiB")
def test_unknown_limit():
    step(W, X)

def test_fixture_within(pmapx_budget):
    placed = jax.device_put((W, X), jax.sharding.NamedSharding(mesh, rows))
    found = pmapx_budget(step, *placed, compiles=1, collectives={"all-reduce": 1})
    assert found.name == "update"

def test_fixture_over(pmapx_budget):
    pmapx_budget(slow_step, W, X, collectives={})

def test_block():
    with pmapx.testing.assert_no_gather():
        slow_step(W, X)

def test_unmarked():
    slow_step(W, X)
"""
PLUGIN = "pmapx._src.testing.pytest_plugin"


def run(tmp_path, *options, tests=TESTS, devices=2):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "test_program.py").write_text(tests)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider",
         "--rootdir", str(tmp_path), "--strict-markers", "--tb=short", "-rA", *options],
        env={**os.environ, "PYTHONPATH": str(Path(pmapx.__file__).parents[1]),
             "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "JAX_PLATFORMS": "cpu",
             "XLA_FLAGS": xla_flags(devices)},
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    return run(tmp_path_factory.mktemp("project"), "--pmapx").stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test_gathers", "gathers (program.py:8): 1 all-gather in a call, 0 allowed: all-gather of "
         "512 B over i at program.py:9 (all_gather)"),
        ("test_two_shapes", "2 compiles, 1 allowed: w was float32[2,64], is float32[2,32]"),
        ("test_bytes", "a device sends 256 B in a call, 100B allowed: all-reduce of 256 B over i "
         "at program.py:6 (psum)"),
        ("test_memory", "100 allowed:"),
        ("test_nothing", "nothing to check: no function of jax.jit or pmap was called"),
        ("test_unknown_limit", "no limit 'byte'; use compiles, collectives, bytes"),
        ("test_fixture_over", "1 all-gather in a call, 0 allowed"),
        ("test_block", "gathers: all-gather of 512 B over i at program.py:9 (all_gather)"),
    ],
)  # fmt: skip
def test_a_test_over_its_budget_fails_with_the_line(checked, name, message):
    assert f"FAILED test_program.py::{name}" in checked
    assert message in checked


@pytest.mark.parametrize("name", ["test_within", "test_fixture_within", "test_unmarked"])
def test_a_test_within_its_budget_passes(checked, name):
    assert f"PASSED test_program.py::{name}" in checked


def test_without_the_option_marks_are_not_checked_and_jax_is_not_imported(tmp_path):
    tests = (
        "import sys, pytest\n"
        "@pytest.mark.pmapx(bytes=0)\n"
        "def test_mark():\n"
        "    assert 'jax' not in sys.modules\n"
    )
    done = run(tmp_path, tests=tests)

    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(
    bool(os.environ.get("PMAPX_PUBLIC_ONLY")),
    reason="public JAX has no more CPU devices than the process was started with",
)
@pytest.mark.parametrize("allowed", ["1KiB", "1B"])
def test_a_budget_can_be_that_of_a_topology(tmp_path, allowed):
    tests = (
        "import pytest\nfrom program import *\n"
        f"@pytest.mark.pmapx(bytes='{allowed}', topology='cpu:4')\n"
        "def test_there():\n    step(W, X)\n"
    )
    done = run(tmp_path, "--pmapx", tests=tests)

    assert ("1 passed" in done.stdout) == (allowed == "1KiB"), done.stdout
    # By the ring algorithm on 4 devices: 2 * 3/4 of 256 B.
    assert ("a device sends 384 B" in done.stdout) == (allowed == "1B")


def test_pytest_finds_the_plugin_by_its_entry_point():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())

    assert project["project"]["entry-points"]["pytest11"] == {"pmapx": PLUGIN}
