"""Commands of the user's with code of ours inside: how verify, audit and migrate watch a program.

The command runs as it is, in processes of its own. Python imports ``site/sitecustomize.py`` first
in each of them, which waits until the program has imported JAX, and then calls our hooks. What
these learn they write to a folder, from which the parent reads it when the command has ended.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pmapx._src.distributed.launcher import with_devices

_SITE = Path(__file__).parent / "site"
_HOME = Path(__file__).parents[3]

# The hook that makes a program one of the legacy mode, as `pmapx run` does.
INSTALL = "pmapx._src.watch.hooks:install"


def run(
    command: Sequence[str],
    hooks: Sequence[str],
    records: str | os.PathLike[str],
    *,
    devices: int | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
    outlives_interrupt: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end with hooks in every Python process that imports JAX.

    Example:
      >>> import sys, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     run([sys.executable, "-c", "print('hello')"], [], folder, quiet=True).stdout
      'hello\\n'

    Args:
      command: the program and its arguments; ``python`` is this Python where there is no other.
      hooks: functions as ``module:name``, called in turn with the folder for records, a ``Path``.
      records: the folder that hooks write to.
      devices: how many virtual CPU devices it sees; None leaves the devices alone.
      cwd: where it runs; by default here.
      env: its environment; by default this process's own.
      quiet: whether its output is kept (in the result) and not shown.
      outlives_interrupt: whether Ctrl-C, which the program gets too, is left to it: what it wrote
        by then is worth reading. A second one ends it.

    Returns:
      The ended process.

    Raises:
      FileNotFoundError: if there is no such command.
    """
    inherited = with_devices(os.environ if env is None else env, devices)
    whole = [find_program(command[0], inherited), *command[1:]]
    hooked = environment(inherited, hooks, records)
    if outlives_interrupt and not quiet:
        with subprocess.Popen(whole, env=hooked, cwd=cwd) as process:
            return subprocess.CompletedProcess(whole, _wait(process))
    return subprocess.run(
        whole,
        env=hooked,
        cwd=cwd,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.PIPE if quiet else None,
        text=True,
        errors="replace",
        check=False,
    )


_PATIENCE_SECONDS = 10.0


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Waits for a process, also through a first Ctrl-C."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        pass
    try:
        return process.wait(_PATIENCE_SECONDS)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        return process.wait()


def environment(
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


def find_program(program: str, env: Mapping[str, str]) -> str:
    """Returns where a command is, ``python`` being this one where there is no other.

    What is installed beside this Python, as ``pmapx`` is, is found though no path leads there.
    """
    found = shutil.which(program, path=env.get("PATH"))
    if found is None and os.path.basename(program) == program:
        found = shutil.which(program, path=os.path.dirname(sys.executable))
    if found is None and program in ("python", "python3"):
        found = sys.executable
    if found is None:
        raise FileNotFoundError(f"no such command: {program}")
    return found
