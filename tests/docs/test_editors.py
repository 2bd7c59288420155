"""The settings for editors on the page are those that work with what `pmapx check` prints."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("click", reason="needs pmapx[tools]")

PAGE = Path(__file__).parents[2] / "docs" / "editors.md"
PROGRAM = """\
import jax
step = jax.pmap(lambda x: x + 1)
tree = jax.tree_map(abs, {})
"""
FOUND = [(2, "PMX501"), (3, "PMX519")]


def block(language):
    text = PAGE.read_text("utf-8")
    return re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a program, and a shell in which pmapx is the one that is tested."""
    (tmp_path / "train.py").write_text(PROGRAM)
    command = tmp_path / "bin" / "pmapx"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pmapx "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def needs(editor):
    return pytest.mark.skipif(shutil.which(editor) is None, reason=f"needs {editor}")


def test_the_matcher_of_vs_code_finds_each_finding(project):
    (task,) = json.loads(block("json"))["tasks"]
    done = subprocess.run(task["command"], shell=True, capture_output=True, text=True, check=False)
    pattern = task["problemMatcher"]["pattern"]
    found = [re.match(pattern["regexp"], line) for line in done.stdout.splitlines()]
    places = [(int(m[pattern["line"]]), m[pattern["code"]]) for m in found if m]
    assert places == FOUND
    assert {m[pattern["file"]] for m in found if m} == {"./train.py"}


@needs("vim")
def test_vim_has_each_finding_in_its_quickfix_list(project):
    (project / "rc.vim").write_text("filetype on\n" + block("vim"))
    subprocess.run(
        ["vim", "-u", "rc.vim", "-N", "-es", "--not-a-term", "-c", "set filetype=python"]
        + ["-c", "silent make", "-c", "redir! > list.txt", "-c", "silent clist", "-c", "redir END"]
        + ["-c", "PmapxFix", "-c", "write! fixed.py", "-c", "qa!", "train.py"],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    found = re.findall(r"train\.py:(\d+) col \d+: (\S+)", (project / "list.txt").read_text())
    assert [(int(line), code) for line, code in found] == FOUND
    assert (project / "fixed.py").read_text() == PROGRAM.replace("jax.tree_map", "jax.tree.map")


@needs("nvim")
def test_neovim_shows_each_finding_as_a_diagnostic(project):
    (project / "init.lua").write_text(block("lua"))
    shown = "for _, d in ipairs(vim.diagnostic.get(0)) do print(d.lnum + 1, d.code) end"
    done = subprocess.run(
        ["nvim", "--headless", "-u", "init.lua", "train.py", "-c", f"lua {shown}", "-c", "qa!"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    found = re.findall(r"(\d+) (PMX\d+)", done.stderr + done.stdout)
    assert [(int(line), code) for line, code in found] == FOUND
