"""Copies of a tree in which a change is tried."""

import os
from pathlib import Path

import pytest

from pmapx._src.watch import tree_copies
from pmapx._src.watch.tree_copies import CannotRunError, TreeCopy, tree_around


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setattr(tree_copies, "SMALL", 1000)
    root = tmp_path / "project"
    for folder in ("lab", ".git", "venv/lib", "data", "lab/__pycache__"):
        (root / folder).mkdir(parents=True)
    (root / "lab" / "train.py").write_text("old")
    (root / "lab" / "train.py").chmod(0o750)
    (root / "lab" / "main.py").symlink_to("train.py")
    (root / ".git" / "HEAD").write_text("x")
    (root / "venv" / "pyvenv.cfg").write_text("")
    (root / "data" / "small").write_text("small")
    (root / "data" / "large").write_bytes(bytes(tree_copies.SMALL + 1))
    (root / "outside").symlink_to("/usr")
    return root


def test_a_copy_has_files_that_are_not_there_yet(tree, tmp_path):
    tree_copies.copy_tree(tree, tmp_path / "copy", {tree / "lab" / "sharding.py": b"new"})
    assert (tmp_path / "copy" / "lab" / "sharding.py").read_text() == "new"
    assert not (tree / "lab" / "sharding.py").exists()


def test_a_copy_has_the_changed_files_and_the_user_s_stay(tree, tmp_path):
    tree_copies.copy_tree(tree, tmp_path / "copy", {tree / "lab" / "train.py": b"new"})
    copy = tmp_path / "copy"
    assert (copy / "lab" / "train.py").read_text() == "new"
    assert (copy / "lab" / "train.py").stat().st_mode & 0o777 == 0o750
    assert (copy / "lab" / "main.py").read_text() == "new"
    assert (tree / "lab" / "train.py").read_text() == "old"
    assert not (copy / ".git").exists()
    assert not (copy / "lab" / "__pycache__").exists()


def test_small_files_are_copied_and_large_ones_linked(tree, tmp_path):
    tree_copies.copy_tree(tree, tmp_path / "copy", {})
    copy = tmp_path / "copy"
    assert not (copy / "data" / "small").is_symlink()
    assert os.readlink(copy / "data" / "large") == str(tree / "data" / "large")
    assert os.readlink(copy / "venv") == str(tree / "venv")
    assert os.readlink(copy / "outside") == "/usr"


def test_what_is_written_in_a_copy_is_not_written_in_the_tree(tree, tmp_path):
    tree_copies.copy_tree(tree, tmp_path / "copy", {})
    (tmp_path / "copy" / "data" / "small").write_text("other")
    (tmp_path / "copy" / "data" / "checkpoint").write_text("new")
    assert sorted(path.name for path in (tree / "data").iterdir()) == ["large", "small"]
    assert (tree / "data" / "small").read_text() == "small"


def test_a_large_tree_is_linked_beyond_a_bound(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(tree_copies, "MOST_COPIED", 2)
    tree_copies.copy_tree(tree, tmp_path / "copy", {})
    assert (tmp_path / "copy" / "data" / "small").is_symlink()
    assert not (tmp_path / "copy" / "lab" / "train.py").is_symlink()


def test_a_file_that_cannot_be_read_does_not_stop_the_copy(tree, tmp_path, monkeypatch):
    access = os.access
    secret = tree / "data" / "small"
    monkeypatch.setattr(
        tree_copies.os, "access", lambda path, mode: path != secret and access(path, mode)
    )
    tree_copies.copy_tree(tree, tmp_path / "copy", {})
    assert os.readlink(tmp_path / "copy" / "data" / "small") == str(secret)


def test_what_is_beside_the_tree_is_beside_its_copy(tree, tmp_path):
    (tmp_path / "beside").write_text("x")
    copy = tree_copies.copy_beside(tree, tmp_path / "kept" / "before", {})
    assert (copy.path / ".." / "beside").read_text() == "x"
    assert (copy.path / "lab" / "train.py").read_text() == "old"
    assert copy.path.name == tree.name
    assert copy.written() == []
    (tree / "data" / "large").write_text("changed")
    assert copy.written() == [tree / "data" / "large"]


def test_the_tree_holds_the_files_and_the_current_folder(tmp_path):
    here = tmp_path / "project" / "scripts"
    assert tree_around(here, [tmp_path / "project" / "lab" / "a.py"]) == tmp_path / "project"
    assert tree_around(here, [here / "a.py"]) == here


def test_a_tree_at_the_root_of_the_disk_is_refused():
    with pytest.raises(CannotRunError, match="run it in the project's folder"):
        tree_around(Path("/srv/project"), [Path("/opt/lab/a.py")])


def test_paths_of_the_command_lead_to_the_copy(tree, tmp_path):
    copy = tmp_path / "copy"
    tree_copies.copy_tree(tree, copy, {})
    moved = TreeCopy(tree, copy, {}).redirected
    assert moved(f"{tree}/lab/train.py") == f"{copy}/lab/train.py"
    assert moved(f"--config={tree}/lab") == f"--config={copy}/lab"
    assert moved(f"{tree}/venv/pyvenv.cfg") == f"{tree}/venv/pyvenv.cfg"
    assert moved("--steps=3") == "--steps=3"
    assert moved("/usr/bin/env") == "/usr/bin/env"
