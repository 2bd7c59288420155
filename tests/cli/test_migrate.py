"""``pmapx migrate`` as users run it."""

import os
import stat
import subprocess
import threading

import pytest

pytest.importorskip("click.testing", reason="needs pmapx[tools]")
pytest.importorskip("pmapx._src.codemod.migration", reason="needs pmapx[tools]")

from migrating import migrate, written

from pmapx._src.source.rewriting import atomic_write

PROGRAM = "import jax\nstep = jax.pmap(abs, axis_name='i')\n"
CHANGED = "    )(*args),\n)\n"


@pytest.fixture
def program(tmp_path):
    return written(tmp_path, PROGRAM)


def test_the_default_shows_a_diff_and_changes_nothing(program):
    result = migrate(program.parent)
    assert result.exit_code == 1
    assert "+    )(*args),\n+)\n" in result.stdout
    assert "Nothing was changed" in result.stdout
    assert program.read_text() == PROGRAM


def test_the_diff_can_be_applied_by_git(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    shown = migrate("train.py").stdout
    diff = shown[: shown.index("file ")]
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True)
    assert program.read_text().endswith(CHANGED)


def test_the_diff_of_a_new_module_can_be_applied_by_git(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    program.write_text("import jax\n\ndef mapped(f, map_fn=jax.pmap):\n    return map_fn(f)\n")
    shown = migrate("train.py", "--helpers", "sharding.py").stdout
    assert not os.path.exists("sharding.py")
    subprocess.run(["git", "init", "-q"], check=True)
    diff = shown[: shown.index("file ")]
    subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True)
    applied = (program.parent / "sharding.py").read_bytes()
    os.unlink("sharding.py")
    program.write_text("import jax\n\ndef mapped(f, map_fn=jax.pmap):\n    return map_fn(f)\n")
    assert migrate("train.py", "--helpers", "sharding.py", "--write").exit_code == 0
    assert (program.parent / "sharding.py").read_bytes() == applied
    assert "from sharding import map_over_devices\n" in program.read_text()


def test_a_new_module_is_no_file_that_was_read(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    program.write_text("import jax\nstep = jax.pmap(abs, axis_name='i', in_axes=-1)\n")
    shown = migrate("train.py", "--helpers", "sharding.py", "--write").stdout
    assert "1 rewritten in 1 of 1 file, 0 left" in shown


def test_helpers_that_no_file_can_import_are_refused_before_the_command_runs(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    result = migrate("train.py", "--helpers", "../sharding.py", "--", "touch", "was_run")
    assert result.exit_code == 2
    assert "outside the project" in result.output
    assert os.listdir() == ["train.py"]


def test_helpers_are_for_forms_that_add_functions(program):
    result = migrate(program, "--helpers", "sharding.py", "--to", "pmapx")
    assert result.exit_code == 2
    assert "--to pmapx adds no functions" in result.output


def test_write_changes_the_file_once(program):
    result = migrate(program, "--write")
    assert (result.exit_code, "@@" in result.stdout) == (0, False)
    assert "1 rewritten in 1 of 1 file, 0 left" in result.stdout
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
    assert f"{program}:3:8: left: jax.pmap (call): its axis_name is not a string" in result.stdout
    assert "1 rewritten in 1 of 1 file, 1 left" in result.stdout


def test_a_file_that_does_not_parse_is_one_line_and_stays(program):
    (program.parent / "broken.py").write_text("import jax\njax.pmap(\n")
    result = migrate(program.parent, "--write")
    assert result.exit_code == 1
    assert "broken.py: not read: syntax error" in result.stdout
    assert (program.parent / "broken.py").read_text() == "import jax\njax.pmap(\n"


def test_nothing_to_rewrite_is_not_an_error(tmp_path):
    (tmp_path / "a.py").write_text("import jax\n")
    assert migrate(tmp_path).exit_code == 0


def test_a_missing_path_is_an_error(tmp_path):
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


def git(*args):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *args], check=True, capture_output=True)


def test_files_with_uncommitted_changes_are_listed_before_they_are_written(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    git("init", "-q")
    git("add", "train.py")
    git("commit", "-qm", "a")
    for name in ("new.py", "ignored.py"):
        (program.parent / name).write_text(PROGRAM)
    (program.parent / ".gitignore").write_text("ignored.py\n")
    said = migrate(".", "--write").stderr
    assert said == (
        "pmapx: warning: uncommitted changes before the rewrite:\n  ./ignored.py\n  ./new.py\n"
    )


def test_nothing_is_warned_about_what_git_has(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    git("init", "-q")
    git("add", "train.py")
    git("commit", "-qm", "a")
    assert migrate("train.py", "--write").stderr == ""


def test_outside_git_a_warning_is_printed_before_files_are_written(program, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(program.parent.parent))
    assert migrate(program).stderr == ""
    said = migrate(program, "--write").stderr
    assert said == (
        f"pmapx: warning: not in a git repository, so the change cannot be undone:\n  {program}\n"
    )
    assert program.read_text() != PROGRAM


def test_lines_are_counted_with_those_of_new_functions(program):
    counted = [line for line in migrate(program).stdout.splitlines() if " added" in line]
    assert len(counted) == 1
    assert counted[0].endswith("removed.")


def test_work_is_to_rewrite_until_it_is_written(program):
    assert "to rewrite  left" in migrate(program).stdout
    assert "rewritten  left" in migrate(program, "--write").stdout


def test_progress_goes_on_while_no_file_is_read(capsys, monkeypatch):
    from pmapx._src.cli import _terminal

    monkeypatch.setattr(_terminal, "PATIENCE", 0.01)
    monkeypatch.setattr(_terminal, "PIPE_PATIENCE", 0.02)
    with _terminal.Progress("Rewriting", is_ticking=True) as progress:
        progress.advance(3, 3)
        shown = threading.Event()
        for _ in range(500):
            if "Rewriting: 3 of 3" in capsys.readouterr().err:
                shown.set()
                break
            shown.wait(0.02)
    assert shown.is_set()


def test_a_report_is_one_page_with_every_site(program):
    page = program.parent / "out.html"
    program.write_text(PROGRAM + "last = jax.pmap(abs, axis_name=0)\n")
    result = migrate(program, "--report", page)
    assert result.exit_code == 1
    written = page.read_text()
    assert written.startswith("<!doctype html>")
    assert all(word in written for word in ("train.py", '"rewritten"', '"left"', "shard_map"))
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


def test_files_without_pmap_are_reported_as_such(tmp_path):
    (tmp_path / "plain.py").write_text("import jax\n")
    assert migrate(tmp_path).stdout.startswith("No use of pmap in 1 file.\n")
    (tmp_path / "broken.py").write_text("import jax\nstep = jax.pmap(\n")
    assert "No use of pmap in the files that could be read.\n" in migrate(tmp_path).stdout
