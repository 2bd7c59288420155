"""The user's command in a copy of its tree, as verify and migrate run it."""

import json
import os
import sys

import pytest

from pmapx._src.watch.run_in_copy import Command, last_line
from pmapx._src.watch.tree_copies import CannotRunError


@pytest.fixture
def run(tmp_path):
    """Runs a program that never imports JAX, so that its listener is not called."""
    tree = tmp_path / "project"
    tree.mkdir()

    def run(text, *, words=(sys.executable, "train.py"), env=None, timeout=60, **options):
        (tree / "train.py").write_text(text)
        command = Command(words, devices=2, timeout=timeout, env={**os.environ, **(env or {})})
        return command.run("no:listener", tmp_path / "records", tree, cwd=tree, **options)

    return run


def test_a_program_that_is_named_by_its_path_runs_in_the_copy_too(run, tmp_path):
    program = tmp_path / "project" / "train.py"
    written = "import pathlib; pathlib.Path(__file__).with_name('log').write_text('x')"
    ran = run(written, words=(sys.executable, str(program)))
    assert (ran.status, ran.failure) == (0, "")
    assert [path.name for path in program.parent.iterdir()] == ["train.py"]


def test_modules_on_the_python_path_are_those_of_the_copy(run, tmp_path):
    tree = tmp_path / "project"
    (tree / "lab").mkdir()
    (tree / "lab" / "model.py").write_text("size = 1")
    text = "import model; raise SystemExit(model.size)"
    changed = {tree / "lab" / "model.py": b"size = 7"}
    ran = run(text, env={"PYTHONPATH": str(tree / "lab")}, changed=changed)
    assert ran.status == 7


def test_the_output_has_the_users_paths(run, tmp_path):
    ran = run("print(__import__('os').path.realpath(__file__))")
    assert ran.output == str(tmp_path / "project" / "train.py")


def test_what_was_printed_before_an_error_is_not_the_reason(run):
    ran = run("print('step 1'); raise SystemExit('out of data')")
    assert ran.failure.startswith("the command failed with status 1: out of data (command: ")


def test_what_a_program_printed_before_it_was_stopped_is_there(run):
    ran = run("import time; print('step 1'); time.sleep(60)", timeout=2)
    assert (ran.status, ran.output) == (None, "step 1")
    assert ran.failure.startswith("the command did not end within 2 seconds")


def test_an_error_of_several_lines_is_named_by_its_first():
    message = "ValueError: sizes differ:\n  * 8\n  * 2\n----------\nFor simplicity, JAX has removed"
    assert last_line(message) == ": ValueError: sizes differ:"


def test_a_program_that_may_not_be_run_is_an_error_in_one_line(run, tmp_path):
    with pytest.raises(CannotRunError, match=r"cannot run .*train.py: "):
        run("", words=("./train.py",))


def test_the_listener_is_told_where_the_copy_is(run, tmp_path):
    ran = run("", settings={"calls": 3})
    settings = json.loads((tmp_path / "records" / "settings.json").read_text())
    assert settings == {"calls": 3, "root": str(ran.copy.path)}
    assert not ran.copy.path.exists()
    train = str(tmp_path / "project" / "train.py")
    assert ran.copy.original(f"{ran.copy.path}/train.py") == train
    assert ran.copy.original(train) == train
