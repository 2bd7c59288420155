"""What all commands share: help, errors, completion, colour."""

import json
import os
import subprocess
import sys

import pytest

import pmapx
import pmapx._src.cli
from pmapx._src.cli import _about

click = pytest.importorskip("click", reason="needs pmapx[tools]")
from click.testing import CliRunner  # noqa: E402

from pmapx._src.cli._group import group  # noqa: E402

COMMANDS = group.list_commands(click.Context(group))


def run(*args, **environment):
    return CliRunner().invoke(group, args, prog_name="pmapx", env=environment, terminal_width=80)


@pytest.fixture
def failing(monkeypatch):
    """`pmapx explain` with a fault of its own in it."""
    from pmapx._src.cli import explain

    def fail():
        raise ValueError("something\n  is wrong")

    monkeypatch.setattr(explain, "_pages", fail)
    monkeypatch.delenv("PMAPX_TRACEBACK", raising=False)


def test_help_fits_80_columns_and_cuts_no_sentence():
    text = run("--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    listed = text.partition("Commands:")[2]
    assert "..." not in listed
    assert all(f"\n  {name} " in listed for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_fits_80_columns_and_has_examples(name):
    text = run(name, "--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "Examples:" in text
    assert f"pmapx {name}" in text.partition("Examples:")[2]


def test_without_arguments_the_help_is_shown():
    result = run()
    assert "Commands:" in result.output


@pytest.mark.usefixtures("failing")
def test_an_internal_error_is_one_line_with_the_way_to_a_traceback():
    result = run("explain")
    assert result.exit_code == 1
    assert (
        result.stderr
        == "pmapx: ValueError: something; is wrong (set PMAPX_TRACEBACK=1 for a traceback)\n"
    )


@pytest.mark.usefixtures("failing")
def test_a_traceback_is_shown_when_asked_for(monkeypatch):
    assert "Traceback" in run("explain", PMAPX_TRACEBACK="1").stderr
    monkeypatch.setenv("PMAPX_TRACEBACK", "")
    assert "Traceback" in run("--traceback", "explain").stderr


def test_a_command_whose_library_is_missing_says_what_to_install(monkeypatch):
    from pmapx._src.cli import _group

    def fail(name):
        raise ModuleNotFoundError("No module named 'rich'", name="rich")

    monkeypatch.setattr(_group.importlib, "import_module", fail)
    result = run("check")
    assert result.exit_code == 1
    assert result.stderr == 'pmapx: check needs rich: pip install "pmapx[tools]"\n'
    assert run("--help").exit_code == 0


def test_commands_are_listed_in_the_order_a_newcomer_needs_them():
    assert COMMANDS[:6] == ["run", "check", "migrate", "verify", "checkpoint", "audit"]


def test_a_closed_pipe_is_not_an_error(tmp_path):
    done = subprocess.run(
        f"{sys.executable} -m pmapx explain | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(pmapx.__file__))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("PMX001 ")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_explain_has_no_bold_where_colours_are_not_wanted(monkeypatch):
    def shown(**environment):
        return CliRunner(env=environment).invoke(group, ["explain", "PMX501"], color=True).stdout

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1m" in shown(FORCE_COLOR="1")
    assert "\x1b" not in shown(NO_COLOR="1")


def test_no_colour_when_piped(tmp_path):
    (tmp_path / "train.py").write_text("import jax\nf = jax.pmap(g)\n")
    # In one process: what is piped is its output, whichever command writes there.
    each = (
        "from pmapx._src.cli._group import group\n"
        "for line in {}: group(line, standalone_mode=False)"
    )
    lines = (["check", "."], ["migrate", "."], ["explain", "PMX501"])
    done = subprocess.run(
        [sys.executable, "-c", each.format(lines)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(pmapx.__file__))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert all(said in done.stdout for said in ("1 finding", "+++ b/", "PMX501 "))
    assert "\x1b" not in done.stdout + done.stderr


def test_info_says_versions_devices_and_what_was_found():
    facts = json.loads(run("info", "--json").stdout)
    assert facts["versions"]["pmapx"] == pmapx.__version__
    assert facts["devices"]["platform"] == "cpu"
    assert facts["fastpath"].keys() >= {"public only", "dispatch in C++"}
    assert facts["cluster"] is None or facts["cluster"]["kind"]
    text = run("info").stdout
    assert f"{facts['devices']['count']} cpu" in text
    assert facts["versions"]["jax"] in text


def test_info_names_the_cluster_that_the_environment_tells_of():
    found = run("info", OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_RANK="1").stdout
    assert "Open MPI (detected by OMPI_COMM_WORLD_SIZE): process 1 of 4" in found


def test_info_reports_a_missing_platform():
    result = run("info", JAX_PLATFORMS="rocm")
    assert result.exit_code == 0
    assert "none: " in result.stdout


def test_info_does_not_wait_for_devices_that_do_not_answer(monkeypatch):
    def hang(*args, timeout, **options):
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(_about.subprocess, "run", hang)
    assert "no answer in 5 seconds" in run("info", "--timeout", "5").stdout


@pytest.mark.parametrize("args", [["info"], ["check", "."]])
def test_without_the_tools_there_is_info_and_a_line_for_all_else(args, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "click", None)
    monkeypatch.setattr(sys, "argv", ["pmapx", *args])
    if args == ["info"]:
        pmapx._src.cli.main()
        first = capsys.readouterr().out.splitlines()[0]
        assert first.split() == ["pmapx", pmapx.__version__]
    else:
        with pytest.raises(SystemExit) as ended:
            pmapx._src.cli.main()
        assert 'pip install "pmapx[tools]"' in ended.value.code


def test_all_progress_on_a_terminal_is_one_bar_with_its_step_and_time(monkeypatch):
    pytest.importorskip("rich")
    from pmapx._src.cli import _terminal

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with _terminal.Progress("Running the program ({})") as progress:
        progress.show("before", 0.1)
        assert progress._bar is None
        progress.show("before", 2 * _terminal.PATIENCE)
        progress.show("after", 0.1)
        (task,) = progress._bar.tasks
    assert task.description == "Running the program (after)"
    assert task.fields["state"] == "0 s"
