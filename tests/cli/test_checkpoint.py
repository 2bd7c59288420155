"""`pmapx checkpoint`: what is printed, the exit status, and what is on the disk afterwards."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("click", reason="needs pmapx[tools]")
from click.testing import CliRunner

import pmapx
from pmapx._src.cli._group import group

N = 8


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def run(*args):
    return CliRunner().invoke(group, ["checkpoint", *args], prog_name="pmapx")


def write(**arrays):
    np.savez("old.npz", **arrays)


def same(x):
    return np.broadcast_to(x, (N, *np.shape(x)))


def test_unstack_reports_leaves_sizes_and_what_to_do_next():
    write(w=same(np.ones(128, np.float32)), rng=np.arange(2 * N).reshape(N, 2), step=3)
    result = run("unstack", "old.npz", "new.npz", "--keep", "rng")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "kept as they are: rng",
        "left alone, no device axis: step (int64[])",
        "1 leaf unstacked from 8 copies to one, 1 kept, 1 left alone; "
        "arrays: 4.13 KiB before, 648 B after",
        "Wrote new.npz (.npz): restore it in place of old.npz, without unreplicate or x[0].",
        "Next: place it on all devices: jax.device_put(state, NamedSharding(mesh, P()))",
    ]
    assert np.load("new.npz")["w"].shape == (128,)


def test_leaves_that_differ_end_with_1_and_lines_that_name_them():
    write(w=same(np.ones(2)), **{f"rng{i}": np.arange(N) for i in range(10)})
    result = run("unstack", "old.npz", "new.npz")
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0] == ("pmapx: 10 of 11 leaves are not equal on all devices; nothing is written:")
    assert lines[1] == (
        "  rng0: device 1's copy (and 6 more) differs from device 0's in 1 of 1 values, by up to 1"
    )
    assert lines[9] == "  and 2 more"
    assert '--keep "rng0"' in lines[10]
    assert os.listdir() == ["old.npz"]
    assert run("unstack", "old.npz", "new.npz", "--first", "rng*").exit_code == 0


def test_stack_puts_the_axis_on():
    write(w=np.ones(3))
    result = run("stack", "old.npz", "new.npz", "-n", "2")
    assert result.exit_code == 0
    assert "1 leaf stacked to 2 copies each" in result.stdout
    assert result.stdout.endswith("Next: restore it in a program that maps over 2 devices.\n")
    assert np.load("new.npz")["w"].shape == (2, 3)


@pytest.mark.parametrize("command", [("unstack",), ("stack", "-n", "2")])
def test_a_dry_run_writes_nothing(command):
    write(w=same(np.ones(3)))
    result = run(*command, "old.npz", "new.npz", "--dry-run")
    assert result.exit_code == 0
    assert "1 leaf would be" in result.stdout
    assert "Wrote" not in result.stdout
    assert os.listdir() == ["old.npz"]


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ("it_ran",)


def test_a_pickle_is_not_loaded_unless_it_is_trusted():
    with open("old.pkl", "wb") as file:
        pickle.dump({"w": same(np.ones(2)), "more": RunsCode()}, file)
    assert run("unstack", "old.pkl", "new.pkl").exit_code == 2
    assert os.listdir() == ["old.pkl"]
    assert run("unstack", "old.pkl", "new.pkl", "--trust-pickle").exit_code == 0
    assert "it_ran" in os.listdir()


def test_the_modules_of_a_pickle_are_found_in_the_current_folder(tmp_path):
    (tmp_path / "lab.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass State:\n    w: object\n"
    )
    save = "import lab, numpy, pickle; print(pickle.dumps(lab.State(numpy.ones((8, 2)))).hex())"
    made = subprocess.run([sys.executable, "-c", save], capture_output=True, text=True, check=True)
    (tmp_path / "old.pkl").write_bytes(bytes.fromhex(made.stdout))
    script = "from pmapx._src.cli import main; import sys; sys.path.remove(''); main()"
    args = ["checkpoint", "unstack", "old.pkl", "new.pkl", "--trust-pickle"]
    root = os.path.dirname(os.path.dirname(pmapx.__file__))
    done = subprocess.run(
        [sys.executable, "-c", script, *args],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 leaf unstacked")


def test_ctrl_c_leaves_nothing_and_ends_with_130(monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    write(w=same(np.ones(3)))
    monkeypatch.setattr(np.lib.format, "write_array", stop)
    result = run("unstack", "old.npz", "new.npz")
    assert result.exit_code == 130
    assert result.stderr.strip().startswith("pmapx: interrupted; no file was left half-written")
    assert os.listdir() == ["old.npz"]


@pytest.mark.parametrize("name", ["unstack", "stack"])
def test_help_fits_80_columns_and_has_examples(name):
    text = CliRunner().invoke(group, ["checkpoint", name, "--help"], terminal_width=80).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert f"pmapx checkpoint {name}" in text.partition("Examples:")[2]
