"""A file is written completely or not at all."""

import os
import stat

import pytest

from pmapx._src.source.command_error import CommandError
from pmapx._src.source.rewriting import atomic_write


def test_a_file_is_replaced_and_keeps_its_mode(tmp_path):
    path = tmp_path / "out.html"
    path.write_text("old")
    path.chmod(0o640)
    atomic_write.write_output(str(path), "new\ud800")
    assert path.read_bytes() == b"new?"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["out.html"]


def test_a_new_file_has_the_usual_mode(tmp_path):
    other = tmp_path / "other"
    other.touch()
    atomic_write.write_output(str(tmp_path / "out.html"), "new")
    assert (tmp_path / "out.html").stat().st_mode == other.stat().st_mode


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "out.html"
    path.write_text("old")
    monkeypatch.setattr(atomic_write.os, "replace", fail)
    with pytest.raises(CommandError, match=r"out\.html: no space left on device"):
        atomic_write.write_output(str(path), "new")
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["out.html"])


@pytest.mark.parametrize("where", ["missing/out.html", "."])
def test_a_place_that_cannot_be_written_is_known_before(tmp_path, where):
    with pytest.raises(CommandError, match="cannot write"):
        atomic_write.check(str(tmp_path / where))
    with pytest.raises(CommandError, match="cannot write"):
        atomic_write.write_output(str(tmp_path / where), "new")


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "out.html"
    link.symlink_to(tmp_path / "there" / "out.html")
    atomic_write.write_output(str(link), "new")
    assert link.is_symlink()
    assert (tmp_path / "there" / "out.html").read_text() == "new"


def test_a_file_that_is_not_as_expected_is_left_alone(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("mine")
    with pytest.raises(OSError, match="changed"):
        atomic_write.write(str(path), b"new", expected=b"old")
    assert path.read_text() == "mine"
