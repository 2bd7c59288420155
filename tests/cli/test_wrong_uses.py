"""Wrong uses of each command: one line that says what is wrong and what to do, and status 2."""

import pickle

import numpy as np
import pytest

pytest.importorskip("click", reason="needs pmapx[tools]")
pytest.importorskip("click", reason="needs pmapx[tools]")
from click.testing import CliRunner

from pmapx._src.cli._group import group

# What is typed after `pmapx`, and what the line must have in it. `code` is a folder with a program.
WRONG = {
    "pmapx": [
        ("--nosuch", "No such option '--nosuch'"),
        ("chekc code", "Did you mean 'check'?"),
        ("no_such", "No such command 'no_such'"),
        ("no-such", "No such command 'no-such'"),
    ],
    "check": [
        ("", "Missing argument 'PATH...'"),
        ("nosuch", "no such file or directory: 'nosuch'"),
        ("''", "no such file or directory: ''"),
        ("code nosuch", "no such file or directory: 'nosuch'"),
        ("code --format yaml", "'yaml' is not one of 'github', 'json', 'sarif', 'text'"),
        ("code --frmat json", "Did you mean '--format'?"),
        ("code --format", "Option '--format' requires an argument"),
        ("code --select PMX9", "no rule 'PMX9'; closest are PMX5"),
        ("code --select ruff", "no rule 'RUFF'; pmapx explain lists them"),
        ("code --ignore PMX99999", "no rule 'PMX99999'; closest are"),
        ("code --confidence huge", "'huge' is not one of 'low', 'medium', 'high'"),
        ("code --jobs 0", "0 is not in the range x>=1"),
        ("code --jobs many", "'many' is not a number"),
        ("code --output nosuch/found.txt", "cannot write nosuch/found.txt"),
        ("code --output code", "File 'code' is a directory"),
        ("mistyped", "no setting 'ignroe' in [tool.pmapx]; did you mean 'ignore'?"),
    ],
    "explain": [
        ("PMX999", "no code 'PMX999'; the closest are PMX"),
        ("501x", "no code '501x'; the closest are PMX501"),
        ("shard_map", "pmapx explain lists all codes"),
        ("''", "pmapx explain lists all codes"),
        ("PMX501 PMX502", "unexpected extra argument (PMX502)"),
        ("--all", "No such option '--all'"),
    ],
    "completion": [
        ("", "Choose from: bash, zsh, fish"),
        ("tcsh", "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        ("bash zsh", "unexpected extra argument (zsh)"),
    ],
    "info": [
        ("--timeout 0", "0.0 is not in the range x>=1"),
        ("--timeout soon", "'soon' is not a number"),
        ("--jsn", "Did you mean '--json'?"),
        ("here", "unexpected extra argument (here)"),
    ],
    "run": [
        ("", "Missing argument 'PROGRAM'"),
        ("nosuch.py", "no such file: 'nosuch.py'"),
        ("trainer", "to run a module: pmapx run -m"),
        ("''", "no such file: ''"),
        ("code", "the directory 'code' has no __main__.py"),
        ("--nosuch code/train.py", "No such option '--nosuch'"),
        ("--devices 0 code/train.py", "0 is not in the range x>=1"),
        ("--devices all code/train.py", "'all' is not a number"),
        ("--devices", "Option '--devices' requires an argument"),
        ("-n 0 code/train.py", "0 is not in the range x>=1"),
        ("-n two code/train.py", "'two' is not a number"),
        ("-n 2 nosuch.py", "no such file: 'nosuch.py'"),
    ],
    "migrate": [
        ("", "Missing argument 'PATH...'"),
        ("nosuch", "no such file or directory: "),
        ("code --to jax", "'jax' is not one of 'shard_map', 'jit', 'pmapx'"),
        ("code --style stack", "'stack' is not one of 'global', 'replicated', 'stacked'"),
        ("code --style stacked --replicated step:x", "--replicated needs --style global or"),
        ("code --verify", "--verify needs a command: --verify -- python"),
        ("code --verify --", "--verify needs a command: --verify -- python"),
        (
            "code --style stacked -- python train.py",
            "a command after -- needs --verify, --style global",
        ),
        ("code --report nosuch/page.html", "cannot write nosuch/page.html"),
        ("code --report code", "cannot write code: it is a directory"),
        ("code --devices 0", "0 is not in the range x>=1"),
        ("code --rtol -1", "-1.0 is not in the range x>=0"),
        ("code --atol little", "'little' is not a number"),
        ("code --timeout 0", "0.0 is not in the range x>0"),
        ("code --reprt page.html", "Did you mean one of: '--helpers', '--replicated', '--report'"),
    ],
    "verify": [
        ("", "Missing option '--before'"),
        ("--before code", "Missing option '--after'"),
        ("--before nosuch --after code -- python x.py", "no such directory: nosuch"),
        ("--before code --after nosuch -- python x.py", "no such directory: nosuch"),
        ("--before code/train.py --after code -- python x.py", "'code/train.py' is a file"),
        ("--before code --after code", "pass the command to run after --"),
        ("--before code --after code --", "pass the command to run after --"),
        ("--before code --after code x -- python", "unexpected extra argument (x)"),
        ("--before code --after code --rtol a -- python", "'a' is not a number"),
        ("--before code --after code --atol -1 -- python", "-1.0 is not in the range x>=0"),
        ("--before code --after code --calls 0 -- python", "0 is not in the range x>=1"),
        ("--before code --after code --devices 0 -- python", "0 is not in the range x>=1"),
        ("--before code --after code --timeout -3 -- python", "-3.0 is not in the range x>0"),
        ("--before code --after code --format xml -- python", "'xml' is not one of 'text', 'json'"),
        ("--before code --after code -- no_such_command", "no such command: no_such_command"),
    ],
    "checkpoint": [
        ("unstak old.npz new.npz", "No such command 'unstak'"),
        ("unstack", "Missing argument 'OLD'"),
        ("unstack old.npz", "Missing argument 'NEW'"),
        ("unstack nosuch new.npz", "no such file or folder: nosuch"),
        ("unstack code/train.py new", "unknown format: code/train.py is not a pickle"),
        ("unstack code new", "code is a folder without an Orbax checkpoint"),
        ("unstack code code/new", "are inside one another"),
        ("unstack old.npz ./old.npz --force", "is the old checkpoint, which is never changed"),
        ("unstack old.npz code/train.py", "code/train.py exists; --force overwrites it"),
        ("unstack old.npz nosuch/new.npz", "cannot write nosuch/new.npz: there is no folder"),
        ("unstack old.npz new.npz -n 0", "0 is not in the range x>=1"),
        ("unstack old.npz new.npz -n 3", "no array has a leading axis of size 3"),
        ("unstack old.npz new.npz --keep v", "--keep 'v' matches no leaf"),
        ("unstack old.pkl new.pkl", "which can run arbitrary code when loaded: add --trust-pickle"),
        ("stack old.npz new.npz", "Missing option '-n'"),
        (
            "stack old.pkl new.pkl -n 2",
            "which can run arbitrary code when loaded: add --trust-pickle",
        ),
        ("stack old.npz new.npz -n 2 --first w", "No such option '--first'"),
    ],
    "audit": [
        ("", "Missing argument 'PROGRAM...'"),
        ("--", "Missing argument 'PROGRAM...'"),
        ("-- no_such_command", "no such command: no_such_command"),
        ("--build train:build code/train.py", "--build takes no PROGRAM"),
        ("--scale batch code/train.py", "'batch' is not ARG=DIM"),
        ("--jsn a.json -- python code/train.py", "No such option '--jsn'"),
        ("--json nosuch/a.json -- python x.py", "cannot write nosuch/a.json"),
        ("--html nosuch/a.html -- python x.py", "cannot write nosuch/a.html"),
        ("--html code -- python x.py", "File 'code' is a directory"),
        ("--devices 0 -- python x.py", "0 is not in the range x>=1"),
        ("--devices x -- python x.py", "'x' is not a number"),
        ("--topology pod -- python x.py", "a topology is written as family:shape"),
        ("--topology v5e -- python x.py", "a topology is written as family:shape"),
        ("--topology v5e:0x0 -- python x.py", "it has no devices"),
        ("--topology v9z:2x2 -- python x.py", "v9z is not a known device family"),
        ("--topology", "Option '--topology' requires an argument"),
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("wrong")
    for name in ("code", "mistyped"):
        (made / name).mkdir()
        (made / name / "train.py").write_text("import jax\nf = jax.pmap(lambda x: x)\n")
    np.savez(made / "old.npz", w=np.ones((8, 2)))
    (made / "old.pkl").write_bytes(pickle.dumps({"w": np.ones((8, 2))}))
    (made / "mistyped" / "pyproject.toml").write_text("[tool.pmapx]\nignroe = []\n")
    return made


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_use_is_one_line_with_a_hint(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    for typed, said in WRONG[command]:
        args = [word.replace("''", "") for word in typed.split()]
        if command != "pmapx":
            args.insert(0, command)
        result = CliRunner().invoke(group, args, prog_name="pmapx")
        assert result.exit_code == 2, typed
        assert result.stdout == "", typed
        (line,) = result.stderr.splitlines()
        assert line.startswith("pmapx: "), typed
        assert said in line, typed
    assert sorted(folder.rglob("*")) == before


def test_every_command_has_wrong_uses():
    import click

    assert WRONG.keys() == {"pmapx", *group.list_commands(click.Context(group))}
