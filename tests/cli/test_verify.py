"""``pmapx verify`` and ``pmapx migrate --verify`` as users run them."""

import json
import sys

import pytest

pytest.importorskip("pmapx._src.codemod.migration", reason="needs pmapx[tools]")
click_testing = pytest.importorskip("click.testing", reason="needs pmapx[tools]")

HEAD = """\
import sys
import jax, numpy as np
def step(w, x):
    return w - jax.lax.pmean(x, "i")
"""
PROGRAM = (
    HEAD
    + """\
mapped = jax.pmap(step, axis_name="i", donate_argnums=0)
other = jax.pmap(abs)
w = jax.device_put_replicated(np.float32(1), jax.devices())
for _ in range(int(sys.argv[1])):
    w = mapped(w, np.arange(jax.device_count(), dtype=np.float32))
print(w)
open("checkpoint", "w").write("new")
"""
)


@pytest.fixture
def program(tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(PROGRAM)
    (project / "elsewhere").mkdir()
    (project / "elsewhere" / "other.py").write_text("import jax\njax.pmap(abs)\n")
    monkeypatch.chdir(project)
    return project / "train.py"


def pmapx(*arguments):
    from pmapx._src.cli._group import group

    command = ["--devices", "2", "--", sys.executable, "train.py", "3"]
    return click_testing.CliRunner().invoke(group, [*map(str, arguments), *command])


def migrate(*arguments):
    return pmapx("migrate", "train.py", "--no-diff", "--verify", *arguments)


def test_a_migration_is_verified_and_then_written(program, tmp_path):
    page = tmp_path / "page.html"
    result = migrate("--write", "--report", page)
    assert "train.py:5  step      verified        3  equal to the bit" in result.stdout
    assert (
        "train.py:6  abs       unverified      -  it was created, but never called" in result.stdout
    )
    assert "1 verified, 0 different, 1 unverified" in result.stdout
    assert (result.exit_code, "jax.pmap(" in program.read_text()) == (0, False)
    assert "equal to the bit" in page.read_text()
    assert sorted(path.name for path in program.parent.iterdir()) == ["elsewhere", "train.py"]
    assert "other.py" not in result.stdout


def test_a_migration_that_changes_a_result_is_not_written(program, monkeypatch):
    import dataclasses

    from pmapx._src.codemod import migration

    read = migration.migrate

    def read_and_break(*args, **kwargs):
        done = read(*args, **kwargs)
        (file,) = done.files
        wrong = file.after.replace(b"jax.lax.pmean(x", b"jax.lax.psum(x")
        return dataclasses.replace(done, files=(dataclasses.replace(file, after=wrong),))

    monkeypatch.setattr(migration, "migrate", read_and_break)
    result = migrate("--write")
    assert (result.exit_code, program.read_text()) == (1, PROGRAM)
    assert "call 0: the output: by up to 0.5 (0.5 became 0" in result.stdout
    assert "its change in the call is about 2 times as large" in result.stdout
    assert "Nothing was written: the change is not verified." in result.stdout


def test_without_a_change_nothing_is_run(program):
    program.write_text("import jax\nraise SystemExit('it was run')\n")
    result = migrate("--write")
    assert (result.exit_code, "Nothing to verify" in result.stdout) == (0, True)


def test_two_folders_as_json(program, tmp_path):
    after = tmp_path / "after"
    after.mkdir()
    (after / "train.py").write_text(PROGRAM.replace("range(int(sys.argv[1]))", "range(2)"))
    result = pmapx("verify", "--before", ".", "--after", after, "--format", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["summary"]["different"]) == (1, 1)
    assert found["first"]["detail"] == "called 3 times before and 2 times after"
    assert found["first"]["function"] == "step"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["migrate", ".", "--verify"], "--verify needs a command"),
        (["migrate", ".", "--to", "pmapx", "--", "python"], "a command after -- needs --verify,"),
        (["verify", "--before", ".", "--after", "."], "pass the command to run after --"),
        (["verify", "--before", "no", "--after", ".", "--", "x"], "no such directory: no"),
        (["verify", "--before", ".", "--after", ".", "--", "no-such"], "cannot run no-such"),
    ],
)
def test_what_is_missing_is_one_line(program, arguments, message):
    from pmapx._src.cli._group import group

    result = click_testing.CliRunner().invoke(group, arguments)
    assert (result.exit_code, message in result.stderr) == (2, True)
    assert len(result.stderr.splitlines()) == 1
