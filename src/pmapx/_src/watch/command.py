"""The user's command, run with hooks in every Python process that imports JAX."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pmapx._src.distributed.launcher import with_devices

# A hook: the program runs in the legacy mode, as with ``pmapx run``.
INSTALL = "pmapx._src.watch.transforms:install_legacy_mode"
_SITE = Path(__file__).parent / "site"
_HOME = Path(__file__).parents[3]
RUN_NOTEBOOK = str(Path(__file__).parent / "run_notebook.py")
_PATIENCE_SECONDS = 10.0
_POLL_SECONDS = 0.2

Progress = Callable[[float], None]


def run(
    command: Sequence[str],
    hooks: Sequence[str],
    records: str | os.PathLike[str],
    *,
    devices: int | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> int | None:
    """Runs a command, or a notebook in its place, to its end.

    ``hooks``, as ``module:name``, are called in turn with the folder for ``records``. By default
    the command shares the terminal, and Ctrl-C is left to the program, whose records are worth
    reading; a second one ends it. With a ``log`` for its output it gets its own session, and all
    processes that it started end with it; it may have a ``timeout`` in seconds and ``progress``.

    >>> import sys, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run([sys.executable, "-c", "print(1)"], [], folder, log=f"{folder}/log")
    0

    Returns the exit status, or None after the timeout; raises OSError if it cannot be started.
    """
    inherited = with_devices(os.environ if env is None else env, devices)
    command = _with_notebook(command)
    argv = [_find_program(command[0], inherited, cwd), *command[1:]]
    hooked = _environment(inherited, hooks, records)
    if log is None:
        with _ending_on_sigterm(), subprocess.Popen(argv, env=hooked, cwd=cwd) as process:
            return _wait_through_interrupt(process)
    with _ending_on_sigterm(), open(log, "wb") as output:
        process = subprocess.Popen(
            argv,
            env=hooked,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            return _wait(process, timeout, progress)
        finally:
            _stop_session(process)


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Ends this process by an exception, so that temporary folders and the command go with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_through_interrupt(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait()
    except SystemExit:
        process.terminate()
        raise
    except KeyboardInterrupt:
        pass
    try:
        return process.wait(_PATIENCE_SECONDS)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        return process.wait()


def _wait(
    process: subprocess.Popen[bytes], timeout: float | None, progress: Progress | None
) -> int | None:
    started = time.monotonic()
    while True:
        passed = time.monotonic() - started
        left = _POLL_SECONDS if timeout is None else max(timeout - passed, 0.01)
        try:
            return process.wait(min(_POLL_SECONDS, left))
        except subprocess.TimeoutExpired:
            if timeout is not None and passed >= timeout:
                return None
        if progress is not None:
            progress(passed)


def _stop_session(process: subprocess.Popen[bytes]) -> None:
    """Ends the command, and the processes that it started, if any of them is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        if process.poll() is not None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)


def _environment(
    inherited: Mapping[str, str], hooks: Sequence[str], records: str | os.PathLike[str]
) -> dict[str, str]:
    """Returns an environment in which Python processes call the hooks once JAX is imported."""
    paths = [str(_SITE), *filter(None, [inherited.get("PYTHONPATH")])]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(paths),
        "PMAPX_HOOKS": ",".join(hooks),
        "PMAPX_RECORDS": os.path.abspath(records),
        "PMAPX_HOME": str(_HOME),
    }


def _with_notebook(command: Sequence[str]) -> Sequence[str]:
    """Returns a command in which a program runs the notebook that Python is given, if any.

    >>> _with_notebook(["python", "-u", "a.ipynb", "b.ipynb"])[2:]
    ['...run_notebook.py', 'a.ipynb', 'b.ipynb']
    """
    if command[0].endswith(".ipynb"):
        return [sys.executable, RUN_NOTEBOOK, *command]
    first = next((at for at, word in enumerate(command) if at and not word.startswith("-")), 0)
    is_python = os.path.basename(command[0]).startswith("python")
    if is_python and first and command[first].endswith(".ipynb"):
        return [*command[:first], RUN_NOTEBOOK, *command[first:]]
    return command


def _find_program(program: str, env: Mapping[str, str], cwd: str | os.PathLike[str] | None) -> str:
    """Returns the path of a command.

    Commands that are installed with this Python, as ``pmapx`` is, need not be in PATH.
    """
    if cwd is not None and os.sep in program and not os.path.isabs(program):
        return os.path.abspath(os.path.join(cwd, program))
    found = shutil.which(program, path=env.get("PATH"))
    if found is None and os.path.basename(program) == program:
        found = shutil.which(program, path=os.path.dirname(sys.executable))
    if found is None and program in ("python", "python3"):
        found = sys.executable
    if found is None:
        raise FileNotFoundError(f"no such command: {program}")
    return found
