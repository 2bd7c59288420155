"""Programs of other people's libraries through ``pmapx migrate --to jit``."""

import re
import shutil
import sys
from pathlib import Path

import pytest

import pmapx

pytest.importorskip("optax")
PROGRAMS = Path(__file__).parent / "jit_programs"


@pytest.mark.slow
@pytest.mark.parametrize("program", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_steps_of_a_library_become_jit(program, tmp_path, monkeypatch):
    pytest.importorskip(program.stem.partition("_")[0])
    shutil.copy(program, tmp_path / "train.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    done = pmapx.migrate(["."], to="jit", command=[sys.executable, "train.py"])
    wanted = re.search(r"# jit: (.*)", program.read_text())[1].split(", ")
    assert {form.function: form.reason for form in done.forms} == dict.fromkeys(wanted, "")
    [file] = done.files
    assert not re.search(rb"pmap\(|shard_map\(|lax\.p(mean|sum)|axis_name", file.after)


@pytest.mark.slow
def test_the_state_of_optax_is_sharded(tmp_path, monkeypatch):
    pytest.importorskip("equinox")
    shutil.copy(PROGRAMS / "equinox_mlp.py", tmp_path / "train.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    done = pmapx.migrate(["."], to="jit", fsdp=True, command=[sys.executable, "train.py"])
    [form] = done.forms
    notes = "\n".join(form.notes)
    assert re.search(r"^opt_state +\S+ \S+ +\S+ \S+$", notes, re.M), notes
    assert "stays replicated" not in notes
