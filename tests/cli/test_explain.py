"""The command line: `pmapx explain` and what surrounds it."""

import subprocess
import sys

import pytest

import pmapx
from pmapx._src import cli, errors
from pmapx._src.audit.findings import all_findings
from pmapx._src.lint.rules import all_rules

click_testing = pytest.importorskip("click.testing", reason="needs pmapx[tools]")


def run(*args):
    from pmapx._src.cli._group import group

    return click_testing.CliRunner().invoke(group, args, prog_name="pmapx")


@pytest.mark.parametrize("code", sorted(errors.CODES))
def test_explain_prints_the_page_of_each_code(code):
    result = run("explain", code)
    assert result.exit_code == 0
    assert result.stdout.strip() == errors.explain(code).strip()


@pytest.mark.parametrize("code", sorted(all_rules()))
def test_explain_prints_the_page_of_each_rule(code):
    result = run("explain", code)
    assert result.exit_code == 0
    assert result.stdout.strip() == all_rules()[code].page().strip()


@pytest.mark.parametrize("code", sorted(all_findings()))
def test_explain_prints_the_page_of_each_finding_of_audit(code):
    result = run("explain", code)
    assert result.exit_code == 0
    assert result.stdout.strip() == all_findings()[code].page().strip()


def test_no_rule_or_finding_has_the_code_of_another():
    codes = [*errors.CODES, *all_rules(), *all_findings()]
    assert len(codes) == len(set(codes))


def test_explain_takes_a_code_in_lower_case():
    assert run("explain", "pmx101").stdout == run("explain", "PMX101").stdout


def test_the_prefix_of_a_code_may_be_omitted():
    assert run("explain", "101").stdout == run("explain", "PMX101").stdout


def test_explain_without_a_code_lists_all_of_them_one_a_line():
    lines = run("explain").stdout.splitlines()
    assert [line.split()[0] for line in lines] == sorted(
        [*errors.CODES, *all_rules(), *all_findings()]
    )
    assert all(len(line.split()) > 2 for line in lines)


def test_unknown_code_names_the_closest_in_one_line_and_exits_with_2():
    result = run("explain", "PMX1O1")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "'PMX1O1'" in result.stderr
    assert "PMX101" in result.stderr


def test_version_is_that_of_the_package():
    assert run("--version").stdout.strip() == f"pmapx, version {pmapx.__version__}"


def test_commands_are_found_by_their_file_names():
    assert "explain" in run("--help").stdout
    assert run("no-such-command").exit_code == 2


def test_missing_click_says_what_to_install_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "click", None)
    with pytest.raises(
        SystemExit, match=r'^pmapx: .* pip install "pmapx\[tools\]"; pmapx info works without it$'
    ):
        cli.main()


def test_module_runs_as_a_program_without_colour_when_piped():
    result = subprocess.run(
        [sys.executable, "-m", "pmapx", "explain", "PMX101"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("PMX101")
    assert "\x1b" not in result.stdout


def test_on_a_terminal_a_page_is_formatted_and_code_has_no_backticks(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = run("explain", "PMX521").stdout
    assert "\x1b[1m" in shown
    assert "``" not in shown
    assert "**What.**" not in shown
    assert "PMX521 IndexOfShard" in shown


def test_names_keep_their_case_in_the_first_line_of_a_page():
    assert errors.explain("PMX131").startswith("PMX131 PmapShardingRemoved: PmapSharding can")
    assert errors.explain("PMX105").startswith("PMX105 InAxesNotPrefix: in_axes does")
