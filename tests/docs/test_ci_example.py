"""examples/ci: the gate passes the step as it is, and not the one that regresses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pmapx
from virtual_devices import xla_flags

pytest.importorskip("click", reason="needs pmapx[tools]")
EXAMPLE = Path(__file__).parents[2] / "examples" / "ci"


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "ci"
    shutil.copytree(EXAMPLE, folder)

    def run(*command, **environment):
        return subprocess.run(
            [sys.executable, "-m", *command],
            env={**os.environ, "PYTHONPATH": str(Path(pmapx.__file__).parents[1]),
                 "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "JAX_PLATFORMS": "cpu",
                 "XLA_FLAGS": xla_flags(8), **environment},
            capture_output=True, text=True, timeout=240, cwd=folder,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_the_gate_stops_a_step_that_regresses(run):
    saved = run("pmapx", "audit", "--save", "own.json", "train.py")
    same = run("pmapx", "audit", "--compare", "own.json", "train.py")
    worse = run("pmapx", "audit", "--compare", "own.json", "train.py", REGRESS="1")

    assert (saved.returncode, same.returncode) == (0, 0), saved.stderr + same.stderr
    assert worse.returncode == 1
    assert "worse, train.py:26, all-gather for all_gather" in worse.stderr


@pytest.mark.slow
def test_the_budget_of_the_test_names_the_line(run):
    arguments = "pytest", "-p", "pmapx._src.testing.pytest_plugin", "-q", "--pmapx"
    passed, failed = run(*arguments), run(*arguments, REGRESS="1")

    assert passed.returncode == 0, passed.stdout
    assert failed.returncode == 1
    assert "all-gather of 256 KiB over data at train.py:26 (all_gather)" in failed.stdout


def test_the_baseline_has_no_paths_of_a_machine():
    text = (EXAMPLE / "baseline.json").read_text()

    assert "train.py:24" in text
    assert str(Path.home()) not in text
    assert '": "/' not in text
