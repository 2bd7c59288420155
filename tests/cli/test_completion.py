"""Completion, as the shells do it: their own scripts are sourced and asked."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pmapx

pytest.importorskip("click", reason="needs pmapx[tools]")
pytest.importorskip("click", reason="needs pmapx[tools]")

# What is typed, and what must be among what the shell offers for the last word.
TYPED = {
    "pmapx ch": "check",
    "pmapx check --for": "--format",
    "pmapx check . --format s": "sarif",
    "pmapx completion z": "zsh",
    "pmapx explain PMX52": "PMX521",
    "pmapx migrate --style r": "replicated",
}

ASK_BASH = """
ask() {
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _pmapx_completion pmapx
  echo "${COMPREPLY[*]}"
}
"""


@pytest.fixture
def shell(tmp_path):
    """Runs a script in a shell that has the `pmapx` of these tests on its path."""
    (tmp_path / "pmapx").write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pmapx "$@"\n'
    )
    (tmp_path / "pmapx").chmod(0o755)
    (tmp_path / "train.py").touch()

    def run(name, script):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
        done = subprocess.run(
            [name, "-c", script],
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(Path(pmapx.__file__).parents[1]),
                "HOME": str(tmp_path),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


def test_bash_completes_commands_options_choices_and_codes(shell):
    asked = "\n".join(f"ask {words}" for words in TYPED)
    offered = shell("bash", f'eval "$(pmapx completion bash)"\n{ASK_BASH}\n{asked}')
    for words, wanted, found in zip(TYPED, TYPED.values(), offered, strict=True):
        assert wanted in found.split(), words


def test_bash_completes_files_where_a_program_or_a_path_is_wanted(shell):
    # Click leaves names of files to the shell's own completion, which it asks for with compopt.
    script = (
        'eval "$(pmapx completion bash)"\n'
        f"{ASK_BASH}\n"
        'compopt() { echo compopt "$@"; }\n'
        "ask pmapx run tr\nask pmapx check tr\nask pmapx verify --before tr"
    )
    asked = [line for line in shell("bash", script) if line.startswith("compopt")]
    assert asked == ["compopt -o default", "compopt -o default", "compopt -o dirnames"]


def test_fish_completes_commands_options_choices_and_codes(shell):
    asked = "\n".join(f"complete --do-complete '{words}'; echo --" for words in TYPED)
    offered = "\n".join(shell("fish", f"pmapx completion fish | source\n{asked}")).split("--\n")
    for words, wanted, found in zip(TYPED, TYPED.values(), offered, strict=False):
        assert wanted in found.split(), words


def test_zsh_takes_the_script_and_offers_what_it_is_given(shell):
    # zsh completes in its line editor alone; what its function collects is asked for here.
    script = (
        "autoload -Uz compinit && compinit -u\n"
        'eval "$(pmapx completion zsh)"\n'
        "_describe() { print -r -- ${(P)3} }\n"
        "words=(pmapx ch) CURRENT=2; _pmapx_completion\n"
        "print -r -- $_comps[pmapx]"
    )
    offered, function = shell("zsh", script)
    assert offered.startswith("check")
    assert function == "_pmapx_completion"
