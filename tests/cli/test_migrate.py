"""``pmapx migrate`` as users run it."""

import os
import stat
import subprocess

import pytest

pytest.importorskip("click.testing", reason="needs pmapx[tools]")
pytest.importorskip("pmapx._src.codemod.migration", reason="needs pmapx[tools]")

from migrating import migrate, written

from pmapx._src.source.rewriting import atomic_write

PROGRAM = "import jax\nstep = jax.pmap(abs, axis_name='i')\n"
CHANGED = "step = jax.jit(one_row_each(abs, axis_name='i'))\n"


@pytest.fixture
def program(tmp_path):
    return written(tmp_path, PROGRAM)


def test_the_default_shows_a_diff_and_changes_nothing(program):
    result = migrate(program.parent)
    assert result.exit_code == 1
    assert f"+{CHANGED}" in result.stdout
    assert "Nothing was changed" in result.stdout
    assert program.read_text() == PROGRAM


def test_the_diff_can_be_applied_by_git(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    shown = migrate("train.py").stdout
    diff = shown[: shown.index("file ")]
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True)
    assert program.read_text().endswith(CHANGED)


def test_write_changes_the_file_once(program):
    result = migrate(program, "--write")
    assert (result.exit_code, "@@" in result.stdout) == (0, False)
    assert "1 rewritten in 1 of 1 files, 0 left" in result.stdout
    written = program.read_text()
    assert written.endswith(CHANGED)
    again = migrate(program, "--write", "--diff")
    assert (again.exit_code, program.read_text()) == (0, written)


def test_mode_and_link_of_a_written_file_stay(program):
    program.chmod(0o750)
    link = program.parent / "link.py"
    link.symlink_to(program)
    assert migrate(link, "--write").exit_code == 0
    assert link.is_symlink()
    assert stat.S_IMODE(program.stat().st_mode) == 0o750
    assert program.read_text().endswith(CHANGED)


def test_what_is_left_is_listed_with_its_reason(program):
    program.write_text(PROGRAM + "last = jax.pmap(abs, axis_name=0)\n")
    result = migrate(program, "--write")
    assert result.exit_code == 1
    assert f"{program}:3:8: left: jax.pmap (call): its axis_name is no string" in result.stdout
    assert "1 rewritten in 1 of 1 files, 1 left" in result.stdout


def test_a_file_that_does_not_parse_is_one_line_and_stays(program):
    (program.parent / "broken.py").write_text("import jax\njax.pmap(\n")
    result = migrate(program.parent, "--write")
    assert result.exit_code == 1
    assert "broken.py: not read: syntax error" in result.stdout
    assert (program.parent / "broken.py").read_text() == "import jax\njax.pmap(\n"


def test_nothing_to_do_is_no_error(tmp_path):
    (tmp_path / "a.py").write_text("import jax\n")
    assert migrate(tmp_path).exit_code == 0


def test_a_path_that_is_not_there_is_an_error(tmp_path):
    result = migrate(tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "no such file or directory" in result.stderr


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_file_and_nothing_beside_it(program, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(atomic_write.os, "replace", fail)
    result = migrate(program, "--write")
    assert result.exit_code in (1, 2, 130)
    assert program.read_text() == PROGRAM
    assert os.listdir(program.parent) == ["train.py"]
    if isinstance(error, OSError):
        assert "not written: no space left on device" in result.stdout


def test_a_file_that_changed_meanwhile_is_not_written(program, monkeypatch):
    from pmapx._src.codemod import migration

    read = migration.migrate

    def read_then_edit(*args, **kwargs):
        done = read(*args, **kwargs)
        program.write_text("# mine\n")
        return done

    monkeypatch.setattr(migration, "migrate", read_then_edit)
    result = migrate(program, "--write")
    assert (result.exit_code, program.read_text()) == (2, "# mine\n")


def test_uncommitted_changes_are_warned_about(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    subprocess.run(["git", "init", "-q"], check=True)
    said = migrate("train.py", "--write").stderr
    assert "uncommitted changes before the rewrite in train.py" in said


def test_a_report_is_one_page_with_every_site(program):
    page = program.parent / "out.html"
    program.write_text(PROGRAM + "last = jax.pmap(abs, axis_name=0)\n")
    result = migrate(program, "--report", page)
    assert result.exit_code == 1
    written = page.read_text()
    assert written.startswith("<!doctype html>")
    assert all(word in written for word in ("train.py", '"rewritten"', '"left"', "one_row_each"))
    assert program.read_text().startswith(PROGRAM)


def test_a_report_says_which_file_was_not_written(program, monkeypatch):
    replace = os.replace

    def fail(new, path):
        if path.endswith("train.py"):
            raise OSError(28, "No space left on device")
        replace(new, path)

    monkeypatch.setattr(atomic_write.os, "replace", fail)
    page = program.parent / "out.html"
    assert migrate(program, "--write", "--report", page).exit_code == 2
    assert "the file was not written: no space left on device" in page.read_text()


@pytest.mark.parametrize("where", ["missing/out.html", "."])
def test_a_report_that_cannot_be_written_is_one_line_before_anything_is_done(program, where):
    result = migrate(program, "--write", "--report", program.parent / where)
    assert result.exit_code == 2
    assert result.stderr.startswith("pmapx: cannot write")
    assert result.stderr.count("\n") == 1
    assert program.read_text() == PROGRAM
