"""Styles and forms of ``pmapx migrate`` as users run them."""

import sys

import pytest

pytest.importorskip("pmapx._src.codemod.migration", reason="needs pmapx[tools]")
pytest.importorskip("click.testing", reason="needs pmapx[tools]")

from migrating import migrate, written

PROGRAM = """\
import sys
import jax, numpy as np


def train_step(state, batch):
    return state + jax.lax.pmean(batch.sum(), "i"), batch * 2


p_step = jax.pmap(train_step, axis_name="i")
unused = jax.pmap(abs)


def main():
    state = jax.device_put_replicated(np.float32(1), jax.local_devices())
    for _ in range(2):
        state, doubled = p_step(state, np.ones((jax.local_device_count(), 3), np.float32))
    return float(state[0])


if __name__ == "__main__":
    print(main())
"""


@pytest.fixture
def program(tmp_path):
    return written(tmp_path, PROGRAM)


def test_a_command_proves_what_is_replicated(program):
    command = ["--", sys.executable, program]
    result = migrate(program, "--style", "replicated", "--devices", "2", *command)
    assert result.exit_code == 1, result.stderr
    assert f"{program}:9:10: replicated: train_step: state, return[0]" in result.stdout
    assert f"{program}:10:10: stays stacked: abs: the command never called it" in result.stdout
    assert "+    return float(state)" in result.stdout
    assert 'in_specs=(jax.P(), jax.P("i"))' in result.stdout
    assert program.read_text() == PROGRAM


def test_what_is_named_needs_no_command(program):
    result = migrate(
        program, "--write", "--style", "replicated", "--replicated", "train_step:state"
    )
    assert "replicated: train_step: state, return[0]" in result.stdout
    assert "jax.device_put(np.float32(1), jax.NamedSharding(mesh, jax.P()))" in program.read_text()


def test_without_command_or_name_the_source_proves_it(program):
    result = migrate(program)
    assert f"{program}:9:10: replicated: train_step: state, return[0]" in result.stdout
    assert 'in_specs=(jax.P(), jax.P("i"))' in result.stdout
    assert "+def " not in result.stdout


def test_what_the_source_does_not_show_comes_with_advice(program):
    body = "    if batch.ndim:\n        exec('state = state * batch')\n    return state"
    program.write_text(PROGRAM.replace("    return state", body, 1))
    result = migrate(program, "--style", "replicated")
    assert "stays stacked: train_step: state, return[0]: exec(...) (line 7) is not foll" in (
        result.stdout
    )
    assert "add -- COMMAND, or --replicated train_step:state" in result.stdout


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("nowhere:state", "no pmapped function 'nowhere'; there are: abs, train_step"),
        (
            "train_step:params",
            "train_step has no argument 'params'; it has: state, batch, return[0], return[1]",
        ),
        ("train_step", "--replicated takes FUNCTION:ARGUMENT, not 'train_step'"),
        ("train_step:return[2]", "train_step has no argument 'return[2]'"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_line(program, named, message):
    result = migrate(program, "--write", "--style", "replicated", "--replicated", named)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert program.read_text() == PROGRAM


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('out of data')", "the command failed with status 1"),
        ("import time; time.sleep(60)", "the command did not end within 1 seconds"),
    ],
)
def test_a_command_that_does_not_end_well_proves_nothing(program, code, message):
    options = ["--write", "--style", "replicated", "--timeout", "1" if "sleep" in code else "100"]
    result = migrate(program, *options, "--devices", "2", "--", sys.executable, "-c", code)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert program.read_text() == PROGRAM


def test_a_missing_command_is_an_error(program):
    result = migrate(program, "--style", "replicated", "--devices", "2", "--", "no-such-command")
    problem = "cannot run no-such-command: no such command: no-such-command"
    assert (result.exit_code, result.stderr) == (2, f"pmapx: {problem}\n")


def test_names_are_for_styles_that_replicate(program):
    result = migrate(program, "--style", "stacked", "--replicated", "train_step:state")
    assert (result.exit_code, result.stderr) == (
        2,
        "pmapx: --replicated needs --style global or --style replicated\n",
    )


def test_the_command_runs_in_a_copy_of_the_tree(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    program.write_text(PROGRAM + "    open('left-behind', 'w').close()\n")
    result = migrate(program.name, "--devices", "2", "--", sys.executable, program.name)
    assert "replicated: train_step: state, return[0]" in result.stdout
    assert sorted(path.name for path in program.parent.iterdir()) == [program.name]


def test_the_small_step_is_written(program):
    result = migrate(program, "--write", "--to", "pmapx")
    assert result.exit_code == 0, result.stdout
    text = program.read_text()
    assert "import jax, numpy as np\nimport pmapx\n" in text
    assert 'p_step = pmapx.pmap(train_step, axis_name="i")' in text
    assert "pmapx.device_put_replicated(" in text
    assert migrate(program, "--to", "pmapx").exit_code == 0
