"""Running the user's command once, on the code as it is, to see what its pmaps do."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pmapx._src import watch
from pmapx._src.codemod.replicated.evidence import Evidence
from pmapx._src.distributed.launcher import with_devices

# The hook, by name: to import it here would import JAX.
WATCH = "pmapx._src.codemod.replicated.watching:start"


class ProofError(Exception):
    """The command did not run to its end; the message is one line."""


def prove(
    command: Sequence[str],
    *,
    devices: int | None = None,
    timeout: float | None = None,
    cwd: str | os.PathLike[str] | None = None,
    progress: Callable[[float], None] | None = None,
) -> Evidence:
    """Runs a command under the legacy mode, and returns what was seen.

    Args:
      command: the program and its arguments.
      devices: how many virtual CPU devices it sees; None leaves the devices alone.
      timeout: seconds after which it is ended.
      cwd: where it runs; by default here.
      progress: called with the seconds that have passed.

    Raises:
      ProofError: if there is no such command, it fails, or it takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="pmapx-") as folder:
        try:
            status, errors = _run(command, folder, devices, timeout, cwd, progress)
        except FileNotFoundError as error:
            raise ProofError(str(error)) from None
        except subprocess.TimeoutExpired:
            raise ProofError(
                f"the command did not end within {timeout:g} seconds: give it fewer steps, or "
                "more time with --timeout"
            ) from None
        if status:
            lines = [line for line in errors.splitlines() if line.strip()]
            said = f": {lines[-1].strip()[:200]}" if lines else ""
            raise ProofError(
                f"the command failed with status {status}, so that nothing is proven{said} "
                f"(it was: {shlex.join(command)[:200]})"
            )
        return Evidence.read(Path(folder))


def _run(
    command: Sequence[str],
    folder: str,
    devices: int | None,
    timeout: float | None,
    cwd: str | os.PathLike[str] | None,
    progress: Callable[[float], None] | None,
) -> tuple[int, str]:
    """Runs it in a group of its own, so that what it started ends with it."""
    hooks = [watch.INSTALL, WATCH]
    env = watch.environment(with_devices(os.environ, devices), hooks, folder)
    log = Path(folder) / "errors"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [watch.find_program(command[0], env), *command[1:]],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            status = _wait(process, timeout, progress)
        except BaseException:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    return status, log.read_text(errors="replace")


def _wait(
    process: subprocess.Popen[bytes],
    timeout: float | None,
    progress: Callable[[float], None] | None,
) -> int:
    started = time.monotonic()
    while True:
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            passed = time.monotonic() - started
            if timeout is not None and passed >= timeout:
                raise
        if progress is not None:
            progress(passed)
