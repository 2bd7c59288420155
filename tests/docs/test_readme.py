"""The README's diff is what `pmapx migrate` writes, and both versions run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from virtual_devices import xla_flags

pytest.importorskip("click", reason="needs pmapx[tools]")

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def versions(tmp_path):
    """The program before and after, taken from the diff."""
    text = README.read_text("utf-8")
    lines = re.search(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1].splitlines()
    made = {}
    for name, kept in (("before", " -"), ("after", " +")):
        (tmp_path / name).mkdir()
        made[name] = tmp_path / name / "train.py"
        made[name].write_text("".join(f"{line[1:]}\n" for line in lines if line[:1] in kept))
    return made


def run(*command):
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(8)}
    return subprocess.run(
        command, env=os.environ | flags, capture_output=True, text=True, check=False
    )


def test_the_diff_is_what_migrate_writes(versions):
    from pmapx import migrate

    (file,) = migrate([str(versions["before"])]).files
    assert file.after.decode() == versions["after"].read_text()


def test_the_program_runs_unchanged_with_pmapx_and_migrated_with_jax_alone(versions):
    before = run(sys.executable, "-m", "pmapx", "run", str(versions["before"]))
    after = run(sys.executable, str(versions["after"]))
    assert before.returncode == after.returncode == 0, before.stderr + after.stderr
    assert before.stdout == after.stdout
    assert before.stdout.startswith("step 1, loss ")
