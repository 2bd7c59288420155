"""The command line: `pmapx check`."""

import json
import subprocess
import sys
import time

import pytest

import pmapx

click_testing = pytest.importorskip("click.testing", reason="needs pmapx[tools]")

PROGRAM = """import jax

step = jax.pmap(lambda x: x + 1, axis_name="batch")
print(step(x)[0])
"""


def run(*args, **options):
    from pmapx._src.cli._group import group

    return click_testing.CliRunner().invoke(group, ["check", *map(str, args)], **options)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def test_a_clean_tree_exits_with_0(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    result = run(tmp_path)
    assert result.exit_code == 0
    assert result.stdout.startswith("Nothing found in 1 file.\nNext: ")


def test_findings_exit_with_1_and_show_the_line_with_a_caret(program):
    result = run(program, "--select", "PMX501")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == f"{program}:3:8: PMX501 jax.pmap of `lambda x: x + 1`"
    assert lines[1] == '3 | step = jax.pmap(lambda x: x + 1, axis_name="batch")'
    assert lines[2] == "  |        ^^^^^^^^"
    assert lines[3].startswith("  = pmapx migrate writes jax.jit(jax.shard_map(")
    assert "1 finding in 1 of 1 file: PMX501 1x" in result.stdout


def test_exit_zero_reports_and_exits_with_0(program):
    result = run(program, "--exit-zero")
    assert result.exit_code == 0
    assert "PMX501" in result.stdout


@pytest.mark.parametrize(
    "args",
    [["no/such/path"], [], [".", "--select", "PMX999"], [".", "--format", "xml"], [".", "--what"]],
)
def test_a_wrong_command_exits_with_2_and_prints_nothing_to_stdout(args):
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr


def test_a_wrong_setting_exits_with_2_in_one_line(program):
    (program.parent / "pyproject.toml").write_text("[tool.pmapx]\ncolour = 1\n")
    result = run(program)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


def test_settings_of_the_project_count(program):
    (program.parent / "pyproject.toml").write_text('[tool.pmapx]\nignore = ["PMX5"]\n')
    assert run(program).exit_code == 0


def test_output_has_color_on_request_and_none_when_piped(program):
    assert "\x1b[" not in run(program).stdout
    assert "\x1b[1;31m" in run(program, "--color").stdout
    assert "\x1b[" in run(program, env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[" not in run(program, env={"NO_COLOR": "1", "FORCE_COLOR": "1"}).stdout


def test_control_characters_in_a_file_are_not_printed(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("import jax\nf = jax.pmap(g, '\x1b]0;owned\x07\u202e')\n")
    shown = run(path, "--color").stdout
    assert "\x1b]" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown


def test_json_has_every_finding_with_its_place(program):
    result = run(program, "--format", "json")
    content = json.loads(result.stdout)
    assert content["version"] == 1
    assert content["files"] == 1
    first = content["findings"][0]
    assert (first["code"], first["line"], first["column"], first["end_column"]) == (
        "PMX501",
        3,
        8,
        16,
    )
    assert first["path"] == str(program)
    assert first["confidence"] == "high"
    assert [f["code"] for f in content["findings"]] == ["PMX501", "PMX521"]


def test_json_of_nothing_is_still_json(tmp_path):
    assert json.loads(run(tmp_path, "--format", "json").stdout)["findings"] == []


def test_sarif_names_rules_and_regions(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    content = json.loads(run("train.py", "--format", "sarif").stdout)
    assert content["version"] == "2.1.0"
    (sarif,) = content["runs"]
    rules = [rule["id"] for rule in sarif["tool"]["driver"]["rules"]]
    assert sarif["tool"]["driver"]["version"] == pmapx.__version__
    result = sarif["results"][0]
    assert rules[result["ruleIndex"]] == result["ruleId"] == "PMX501"
    location = result["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "train.py"
    assert location["region"] == {
        "startLine": 3,
        "startColumn": 8,
        "endLine": 3,
        "endColumn": 16,
    }


def test_sarif_quotes_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b%ü.py").write_text(PROGRAM)
    content = json.loads(run(".", "--format", "sarif").stdout)
    uri = content["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert uri["artifactLocation"]["uri"] == "a%20b%25%C3%BC.py"


def test_github_commands_are_one_line_each_and_escaped(tmp_path):
    path = tmp_path / "a,b:c%.py"
    path.write_text(PROGRAM)
    lines = run(path, "--format", "github").stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("::warning file=")
    assert "a%2Cb%3Ac%25.py,line=3,endLine=3,col=8,endColumn=16,title=PMX501::PMX501" in lines[0]


def test_output_goes_to_a_file_without_colour(program, tmp_path):
    target = tmp_path / "report.txt"
    result = run(program, "--output", target, "--color")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "PMX501" in target.read_text()
    assert "\x1b" not in target.read_text()


def test_a_report_that_cannot_be_written_exits_with_2(program, tmp_path):
    result = run(program, "--output", tmp_path / "no" / "where")
    assert result.exit_code == 2


def test_confidence_low_shows_more(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("import jax\ny = jax.pmap(f)(x)\nprint(y[0])\n")
    assert "PMX521" not in run(path).stdout
    assert "PMX521" in run(path, "--confidence", "low").stdout
    assert "[low]" in run(path, "--confidence", "low").stdout


def test_a_bar_is_shown_on_a_terminal_after_a_second_and_not_before(monkeypatch):
    pytest.importorskip("rich")
    from pmapx._src.cli import _terminal

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with _terminal.Progress("Checking") as progress:
        progress.advance(1, 10)
        assert progress._bar is None
        progress._started = time.monotonic() - 2 * _terminal.PATIENCE
        progress.advance(2, 10)
        assert progress._bar is not None


def test_it_runs_as_a_program(program):
    done = subprocess.run(
        [sys.executable, "-m", "pmapx", "check", str(program), "--select", "PMX501"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stdout.startswith(f"{program}:3:8: PMX501")


def test_a_tree_without_jax_is_checked_without_importing_a_rule(tmp_path):
    (tmp_path / "a.py").write_text("import numpy\n")
    program = (
        "import sys\nfrom pmapx._src.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "check", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    imported = set(done.stderr.split())
    assert "pmapx._src.lint.check" in imported
    heavy = {"jax", "rich", "pmapx._src.lint.rules", "pmapx._src.analysis.interpreter.statements"}
    assert not imported & heavy


def test_a_check_imports_nothing_that_only_fixes_pages_and_reports_need(tmp_path):
    (tmp_path / "a.py").write_text("import jax\nf = jax.pmap(g)\n")
    program = (
        "import sys\nfrom pmapx._src.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "check", "--exit-zero", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    imported = set(done.stderr.split())
    assert "PMX501" in done.stdout
    assert "pmapx._src.lint.fixing" in imported
    rarely = {"pmapx._src.errors", "pmapx._src.source.rewriting.notebook_edits", "tempfile"}
    assert not imported & rarely


def test_the_pre_commit_hook_names_this_command():
    from pathlib import Path

    hook = (Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text()
    assert "entry: pmapx check" in hook


REMOVED = "import jax\n\ny = jax.tree_map(abs, x)\nkey: bool = isinstance(k, jax.random.KeyArray)\n"


@pytest.fixture
def removed(tmp_path):
    path = tmp_path / "removed.py"
    path.write_text(REMOVED)
    return path


def test_fix_writes_safe_fixes_and_reports_what_is_left(removed):
    result = run(removed, "--fix")
    assert removed.read_text() == REMOVED.replace("tree_map", "tree.map")
    assert result.exit_code == 1
    assert "Fixed 1 finding in 1 file." in result.stderr
    assert "PMX519 1x" in result.stdout
    assert "Fixable: 1 with --fix --unsafe-fixes." in result.stdout


def test_unsafe_fixes_are_written_when_asked_for(removed):
    result = run(removed, "--fix", "--unsafe-fixes")
    assert "jax.Array" in removed.read_text()
    assert result.exit_code == 0


def test_diff_shows_the_fixes_and_writes_nothing(removed):
    result = run(removed, "--diff")
    assert removed.read_text() == REMOVED
    assert result.exit_code == 1
    assert "-y = jax.tree_map(abs, x)\n+y = jax.tree.map(abs, x)\n" in result.stdout


def test_only_what_is_reported_is_fixed(removed):
    assert run(removed, "--fix", "--ignore", "PMX519").exit_code == 0
    assert removed.read_text() == REMOVED


def test_unsafe_fixes_alone_are_an_error(removed):
    assert run(removed, "--unsafe-fixes").exit_code == 2


def test_a_file_that_cannot_be_written_is_one_line(removed, monkeypatch):
    from pmapx._src.source.rewriting import atomic_write

    def refuse(path, data, *, expected):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_write, "write", refuse)
    result = run(removed, "--fix")
    assert result.exit_code == 2
    assert result.stderr == f"pmapx: cannot write {removed}: no space left on device\n"


@pytest.fixture
def baselined(removed, tmp_path):
    """A file with findings that are all in a baseline."""
    known = tmp_path / "known.json"
    result = run(tmp_path, "--baseline", known, "--write-baseline")
    assert (result.exit_code, result.stdout) == (0, "")
    return known


def test_a_baseline_leaves_nothing_to_report(removed, baselined):
    result = run(removed, "--baseline", baselined)
    assert result.exit_code == 0
    assert result.stdout.startswith("Nothing new found in 1 file.")


def test_known_findings_stay_known_when_lines_move_and_new_ones_are_reported(removed, baselined):
    text = removed.read_text()
    removed.write_text("# moved\n\n" + text + "z = jax.soft_pmap(f)\n")
    result = run(removed, "--baseline", baselined)
    assert result.exit_code == 1
    assert "1 finding in 1 of 1 file: PMX519 1x" in result.stdout


def test_a_line_that_is_repeated_more_often_than_known_is_reported(removed, baselined):
    line = next(line for line in removed.read_text().splitlines() if "tree_map" in line)
    removed.write_text(removed.read_text() + line + "\n")
    result = run(removed, "--baseline", baselined)
    assert "1 finding in 1 of 1 file" in result.stdout


def test_what_is_gone_since_the_baseline_is_counted_and_leaves_it_when_renewed(removed, baselined):
    removed.write_text("import jax\n")
    assert "Gone from the baseline: " in run(removed, "--baseline", baselined).stdout
    run(removed, "--baseline", baselined, "--write-baseline")
    assert json.loads(baselined.read_text())["files"] == {}


def test_renewing_a_baseline_for_one_file_keeps_the_others(removed, baselined, tmp_path):
    other = tmp_path / "other.py"
    other.write_text("import jax\nf = jax.pmap(g)\n")
    run(other, "--baseline", baselined, "--write-baseline")
    assert run(tmp_path, "--baseline", baselined).exit_code == 0


def test_codes_that_are_not_looked_for_stay_in_the_baseline(removed, baselined):
    before = baselined.read_text()
    assert "Gone" not in run(removed, "--baseline", baselined, "--select", "PMX502").stdout
    run(removed, "--baseline", baselined, "--select", "PMX502", "--write-baseline")
    assert baselined.read_text() == before


def test_what_is_in_the_baseline_is_not_fixed(removed, baselined):
    before = removed.read_text()
    run(removed, "--baseline", baselined, "--fix")
    assert removed.read_text() == before


def test_a_baseline_is_a_setting_of_the_project(removed, baselined, tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[tool.pmapx]\nbaseline = "known.json"\n')
    monkeypatch.chdir("/")
    assert run(removed).exit_code == 0


@pytest.mark.parametrize("content", ["[]", "{", '{"version": 2}', '{"version": 1, "files": [1]}'])
def test_a_baseline_that_is_none_is_one_line(removed, tmp_path, content):
    (tmp_path / "known.json").write_text(content)
    for more in ([], ["--write-baseline"]):
        result = run(removed, "--baseline", tmp_path / "known.json", *more)
        assert (result.exit_code, result.stdout) == (2, "")
        assert len(result.stderr.splitlines()) == 1
    assert (tmp_path / "known.json").read_text() == content


@pytest.mark.parametrize(
    "args",
    [
        ["--baseline", "missing.json"],
        ["--write-baseline"],
        ["--baseline", "known.json", "--write-baseline", "--fix"],
        ["--stdin-filename", "a.py"],
        ["--target-jax", "twelve"],
    ],
)
def test_options_that_do_not_go_together_are_one_line(removed, args, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = run(removed, *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "known.json").exists()


SOURCE = "import jax\r\ny = jax.tree_map(abs, 'é')\r\nz = jax.soft_pmap(f)\r\n"


def test_standard_input_is_checked_under_the_given_name(tmp_path):
    name = tmp_path / "not" / "there.py"
    result = run("--stdin-filename", name, "--format", "json", input=SOURCE.encode())
    assert result.exit_code == 1
    found = json.loads(result.stdout)["findings"]
    assert [(f["path"], f["line"]) for f in found] == [(str(name), 2), (str(name), 3)]


def test_standard_input_takes_the_settings_of_its_project(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.pmapx]\nignore = ["PMX5"]\n')
    assert run("--stdin-filename", tmp_path / "a.py", input=SOURCE.encode()).exit_code == 0


def test_fixed_standard_input_goes_to_standard_output_and_findings_to_the_other():
    result = run("--stdin-filename", "a.py", "--fix", input=SOURCE.encode())
    assert result.exit_code == 1
    assert result.stdout_bytes == SOURCE.replace("tree_map", "tree.map").encode()
    assert "a.py:3:5: PMX519" in result.stderr
    clean = run("-", "--fix", input=b"x = 1\n")
    assert (clean.exit_code, clean.stdout) == (0, "x = 1\n")


def test_source_that_does_not_parse_is_printed_unchanged():
    broken = b"import jax\nf = jax.pmap(\n"
    result = run("-", "--fix", input=broken)
    assert result.stdout_bytes == broken
    assert result.exit_code == 1
    assert "PMX500" in result.stderr


def test_a_diff_of_standard_input_names_the_file():
    result = run("--stdin-filename", "src/a.py", "--diff", input=SOURCE.encode())
    assert result.exit_code == 1
    assert result.stdout.startswith("--- a/src/a.py\n+++ b/src/a.py\n")


def test_a_notebook_on_standard_input_is_fixed():
    cells = [{"cell_type": "code", "source": ["import jax\n", "y = jax.tree_map(f, x)"]}]
    text = json.dumps({"cells": cells, "nbformat": 4})
    result = run("--stdin-filename", "a.ipynb", "--fix", input=text.encode())
    assert json.loads(result.stdout) == json.loads(text.replace("tree_map", "tree.map"))
