"""`make release-check` finds what docs/releasing.md asks for and a tree lacks."""

import datetime
import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "release" / "checklist.py"
TODAY = datetime.date(2026, 11, 16)


@pytest.fixture(scope="module")
def checklist():
    spec = importlib.util.spec_from_file_location("checklist", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path):
    """A checkout that is ready."""
    files = {
        "src/pmapx/_version.py": '__version__ = "0.3.0"\n',
        "CITATION.cff": "version: 0.3.0\n",
        "CHANGELOG.md": "# Changelog\n\n## [0.3.0] - 2026-11-16\n\n## [0.2.0] - 2026-10-01\n",
        "docs/assets/calls.json": json.dumps({"date": "2026-11-10", "machine": "pmapx 0.3.0, ..."}),
        "benchmarks/compare.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (
        ["init", "--quiet"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "all"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_a_tree_that_has_everything_is_ready(checklist, tree):
    assert list(checklist.problems(tree, TODAY)) == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("CITATION.cff", "version: 0.2.0\n", "CITATION.cff does not have version 0.3.0"),
        ("CHANGELOG.md", "## [0.2.0] - 2026-10-01\n", "no section [0.3.0]"),
        ("CHANGELOG.md", "## [0.3.0] - unreleased\n", "no date, but 'unreleased'"),
        ("CHANGELOG.md", "## [0.4.0] - x\n\n## [0.3.0] - 2026-11-16\n", "begins with [0.4.0]"),
        (
            "docs/assets/calls.json",
            '{"date": "2026-01-01", "machine": "pmapx 0.3.0"}',
            "is of 2026",
        ),
        ("docs/assets/calls.json", '{"date": "2026-11-10", "machine": "pmapx 0.2.0"}', "0.2.0"),
        ("benchmarks/compare.py", "raise SystemExit(1)", "make bench-docs"),
        ("new.txt", "", "uncommitted changes"),
    ],
)
def test_what_a_tree_lacks_is_named(checklist, tree, name, text, problem):
    (tree / name).write_text(text)
    assert any(problem in each for each in checklist.problems(tree, TODAY))


def test_a_tag_that_exists_is_named(checklist, tree):
    subprocess.run(["git", "tag", "v0.3.0"], cwd=tree, check=True)
    assert list(checklist.problems(tree, TODAY)) == ["the tag v0.3.0 exists"]
