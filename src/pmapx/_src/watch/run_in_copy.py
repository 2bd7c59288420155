"""The one way to run the user's command on a version of the code: in a copy of its tree."""

import dataclasses
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pmapx._src.distributed import launcher
from pmapx._src.source.command_error import reason
from pmapx._src.watch import command
from pmapx._src.watch.tree_copies import CannotRunError, TreeCopy, copy_beside

# Virtual devices on a machine with a CPU only.
DEVICES = 8
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
# The end of the output that is kept, in bytes.
_MOST_OUTPUT = 1 << 20

Progress = Callable[[str, float], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended."""

    status: int | None  # None if it was stopped after the time limit.
    seconds: float
    output: str  # The end of what it printed, with paths of the user's tree.
    failure: str  # Why it did not end well, in a line; empty if it did.
    copy: TreeCopy  # Removed by now.
    written: Sequence[Path]  # Files of the user's tree that it changed: too large to copy.


class Command:
    """The user's command, and how it is run."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        devices: int | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Takes the program and its arguments; ``devices`` are those of ``default_devices``.

        A run is stopped after ``timeout`` seconds. ``progress`` is called with the step that runs
        and the seconds that have passed.
        """
        self.words = tuple(words)
        self.env = dict(os.environ if env is None else env)
        self.devices = default_devices(self.env) if devices is None else devices
        self.timeout = timeout
        self.progress = progress

    def run(
        self,
        listener: str,
        records: Path,
        root: Path | None,
        *,
        cwd: str | os.PathLike[str] = os.curdir,
        changed: Mapping[Path, bytes] | None = None,
        settings: Mapping[str, Any] | None = None,
        is_legacy: bool = True,
        step: str = "",
    ) -> Ran:
        """Runs it to its end in a copy of the tree ``root``, or in the current folder itself.

        Paths to the tree in the command and in PYTHONPATH are redirected to the copy, in which
        ``changed`` files, by their real paths, have new contents. The ``listener``, a hook, writes
        to the folder ``records``, and reads ``settings.json`` there: the ``settings``, and the
        ``root`` of the copy. ``step`` names the run for the progress.

        Raises ``CannotRunError`` if the tree cannot be copied, or the command cannot be started.
        """
        here, log = Path(os.path.realpath(cwd)), records / "output"
        records.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="pmapx-tree-", ignore_cleanup_errors=True) as kept:
            copy = TreeCopy(here, here, {})
            if root is not None:
                copy = copy_beside(root, Path(os.path.realpath(kept), "tree"), changed or {})
            given = json.dumps({**(settings or {}), "root": str(copy.path)})
            (records / "settings.json").write_text(given, encoding="utf-8")
            words = list(map(copy.redirected, self.words))
            started = time.monotonic()
            try:
                status = command.run(
                    words,
                    [*([command.INSTALL] if is_legacy else []), listener],
                    records,
                    cwd=copy.path / os.path.relpath(here, copy.root),
                    env=self._environment(copy, is_legacy),
                    log=log,
                    timeout=self.timeout,
                    progress=self.progress and functools.partial(self.progress, step),
                )
            except OSError as error:
                raise CannotRunError(f"cannot run {words[0]}: {reason(error)}") from None
            seconds = time.monotonic() - started
            # The user knows the tree, not its copy.
            output = _end(log).replace(str(copy.path), str(copy.root))
            return Ran(status, seconds, output, self._failure(status, output), copy, copy.written())

    def _environment(self, copy: TreeCopy, is_legacy: bool) -> dict[str, str]:
        paths = map(copy.redirected, self.env.get("PYTHONPATH", "").split(os.pathsep))
        env = {**self.env, "PYTHONPATH": os.pathsep.join(paths)}
        if not is_legacy:
            # Migrated code runs without us, though `pmapx run -n` may start it.
            env[launcher.PLAIN] = "1"
        return deterministic(launcher.with_devices(env, self.devices))

    def _failure(self, status: int | None, output: str) -> str:
        if status is None:
            return (
                f"the command did not end within {self.timeout:g} seconds: give it fewer steps, "
                "or more time with --timeout"
            )
        shown = shlex.join(self.words)[:200]
        last = last_line(output)
        return f"the command failed with status {status}{last} (command: {shown})" if status else ""


def last_line(output: str) -> str:
    """Returns the error that a program ends with, after a colon.

    >>> last_line("ValueError: sizes differ:\\n  * 8 and 2\\n--------------------\\n")
    ': ValueError: sizes differ:'
    >>> last_line("out of data")
    ': out of data'
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # JAX ends its errors with a line of dashes and a note on its traceback.
    lines = [line for line in lines if not line.startswith(("---", "For simplicity"))]
    errors = [line for line in lines if _ERROR.match(line)]
    return f": {(errors or lines)[-1][:200]}" if lines else ""


def deterministic(env: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which two runs of a program are as deterministic as possible.

    >>> deterministic({})["PYTHONHASHSEED"]
    '0'
    """
    # Unbuffered: what it prints stays in order, and is there if the program is stopped.
    chosen = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", **env}
    # Every build of XLA knows it, and it affects GPUs only.
    flag = "--xla_gpu_deterministic_ops"
    if flag not in chosen.get("XLA_FLAGS", "") and chosen.get("JAX_PLATFORMS") != "cpu":
        chosen["XLA_FLAGS"] = f"{chosen.get('XLA_FLAGS', '')} {flag}=true".strip()
    return chosen


def default_devices(env: Mapping[str, str]) -> int | None:
    """Returns the default number of virtual devices: 8 on a machine with a CPU only, else None.

    A number in XLA_FLAGS is left alone.

    >>> default_devices({"JAX_PLATFORMS": "cpu"})
    8
    """
    if launcher.DEVICES_FLAG in env.get("XLA_FLAGS", ""):
        return None
    platforms = env.get("JAX_PLATFORMS", "")
    if not platforms:
        # In a separate process, since a process that lists GPUs reserves their memory.
        asked = subprocess.run(
            [sys.executable, "-c", "import jax; print(jax.default_backend())"],
            env=dict(env),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        platforms = asked.stdout.strip()
    return DEVICES if platforms == "cpu" else None


def _end(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - _MOST_OUTPUT, 0))
        return file.read().decode("utf-8", "replace").strip()
