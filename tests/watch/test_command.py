"""Code of ours in a command of the user's."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pmapx._src.watch import command


def write_hook(folder, name="watching", body="(records / 'seen').write_text(jax.__version__)"):
    (folder / f"{name}.py").write_text(f"import jax\ndef start(records):\n    {body}\n")
    return f"{name}:start"


def run(tmp_path, code, hooks=(), **more):
    env = {**os.environ, "PYTHONPATH": str(tmp_path), **more.pop("env", {})}
    log = tmp_path / "log"
    status = command.run([sys.executable, "-c", code], hooks, tmp_path, env=env, log=log, **more)
    return status, log.read_text()


def test_hooks_run_when_jax_is_imported(tmp_path):
    hook = write_hook(tmp_path)
    seen = "import os; print(os.path.exists('seen'));"

    done = run(tmp_path, f"{seen} from jax import jit; {seen}", [hook], cwd=tmp_path)

    assert done == (0, "False\nTrue\n")


def test_a_program_without_jax_pays_nothing(tmp_path):
    hook = write_hook(tmp_path)

    _, printed = run(tmp_path, "import sys; print('pmapx' in sys.modules)", [hook])

    assert (printed, (tmp_path / "seen").exists()) == ("False\n", False)


def test_processes_that_the_program_starts_are_watched_too(tmp_path):
    hook = write_hook(tmp_path, body="(records / str(__import__('os').getpid())).touch()")
    inner = "[sys.executable, '-c', 'import jax']"

    run(tmp_path, f"import jax, subprocess, sys; subprocess.run({inner}, check=True)", [hook])

    assert len([path for path in tmp_path.iterdir() if path.name.isdigit()]) == 2


def test_the_legacy_mode_is_a_hook(tmp_path):
    code = "import jax; print(jax.pmap.__module__, jax.device_count(), jax.device_put_replicated)"

    _, printed = run(tmp_path, code, [command.INSTALL], devices=3)

    assert printed.startswith("pmapx.")
    assert " 3 " in printed


def test_the_other_sitecustomize_is_imported(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")

    _, printed = run(tmp_path, "import sitecustomize; print(sitecustomize.__file__)")

    assert printed == f"theirs\n{tmp_path / 'sitecustomize.py'}\n"


def test_the_status_is_the_commands(tmp_path):
    assert run(tmp_path, "raise SystemExit(7)") == (7, "")


def test_a_hook_that_fails_is_loud(tmp_path):
    hook = write_hook(tmp_path, body="raise RuntimeError('the hook failed')")

    status, printed = run(tmp_path, "import jax", [hook])

    assert status == 1
    assert "the hook failed" in printed


def test_a_missing_command_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such command: no-such-thing"):
        command.run(["no-such-thing"], [], tmp_path)


@pytest.mark.parametrize("start", ["from pmapx import pmap", "import pmapx._src.legacy.bootstrap"])
def test_hooks_run_before_pmapx_is_half_imported(tmp_path, start):
    env = {"PYTHONPATH": str(Path(command.__file__).parents[3])}
    code = f"{start}; import jax; print(jax.core.Tracer)"

    status, printed = run(tmp_path, code, [command.INSTALL], env=env)

    assert (status, "Tracer" in printed) == (0, True), printed


def is_gone(pid):
    # What was killed is there until init has waited for it.
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("log", ["None", "f'{folder}/log'"], ids=["shared terminal", "log"])
def test_sigterm_ends_the_command_and_leaves_nothing_behind(tmp_path, log):
    pid = tmp_path / "pid"
    noted = f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))"
    sleeping = f"import os, pathlib, time; {noted}; time.sleep(600)"
    code = f"""
import sys, tempfile
from pmapx._src.watch import command
with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}, prefix="kept-") as folder:
    command.run([sys.executable, "-c", {sleeping!r}], [], folder, log={log})
"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while not (pid.exists() and pid.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    assert not list(tmp_path.glob("kept-*"))
    assert is_gone(int(pid.read_text()))
