"""One run of the user's command on one version of the code, recorded and bounded in time."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pmapx._src.distributed import launcher
from pmapx._src.source.command_error import CommandError
from pmapx._src.verify.limits import CALLS, DEVICES, TIMEOUT
from pmapx._src.verify.record import reader
from pmapx._src.watch import command as watched

_START = "pmapx._src.verify.record.recording:start"
_FORCED = "--xla_force_host_platform_device_count"

Progress = Callable[[float], None]


class CannotRunError(CommandError):
    """The command cannot be started; the message is one line."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A command that has ended; ``status`` is None if it was stopped after the timeout.

    ``failed_first`` is the process of ``pmapx run -n`` that failed first, and how.
    """

    status: int | None
    seconds: float
    processes: list[reader.Records]
    output: str
    failed_first: tuple[int, str] | None = None


def run(
    command: Sequence[str],
    root: Path,
    folder: Path,
    *,
    cwd: Path | None = None,
    elsewhere: Sequence[Path] = (),
    is_legacy: bool,
    devices: int | None = None,
    calls: int = CALLS,
    timeout: float = TIMEOUT,
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Run:
    """Runs a command on the code below ``root`` and returns what was recorded.

    ``folder`` is an empty or a new one for the records; ``elsewhere`` are the folders of other
    versions, of which nothing should be imported. The other options are those of ``verify``.

    Raises:
      CannotRunError: if the command cannot be started.
    """
    settings = {
        "root": os.path.realpath(root),
        "elsewhere": [os.path.realpath(path) for path in elsewhere],
        "calls": calls,
    }
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    inherited = dict(os.environ if env is None else env)
    if not is_legacy:
        # Migrated code runs without us, though `pmapx run -n` may start it.
        inherited[launcher.PLAIN] = "1"
    log = folder / "output"
    started = time.monotonic()
    try:
        status = watched.run(
            command,
            [*([watched.INSTALL] if is_legacy else []), _START],
            folder,
            cwd=root if cwd is None else cwd,
            env=deterministic(launcher.with_devices(inherited, devices)),
            log=log,
            timeout=timeout,
            progress=progress,
        )
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise CannotRunError(f"cannot run {command[0]}: {why}") from None
    seconds = time.monotonic() - started
    first = launcher.failed_first(_tail(log, 1 << 20)) if status else None
    return Run(status, seconds, reader.read(folder), _tail(log), first)


def tree_around(here: Path, files: Sequence[Path]) -> Path:
    """Returns the smallest folder with all files and the current folder."""
    root = Path(os.path.commonpath([here, *(file.parent for file in files)]))
    if root == Path(root.anchor) or root == Path.home():
        raise CannotRunError(
            f"it copies the folder that contains the files and the current folder, which is "
            f"{root}: run it in the project's folder"
        )
    return root


def tree_around_paths(paths: Sequence[str]) -> Path:
    """Returns the smallest folder with some files and folders, and the current folder."""
    given = [Path(os.path.realpath(path)) for path in paths]
    files = [path / "_" if path.is_dir() else path for path in given]
    return tree_around(Path(os.path.realpath(os.curdir)), files)


def deterministic(env: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which two runs of a program are as deterministic as possible.

    >>> deterministic({})["PYTHONHASHSEED"]
    '0'
    """
    chosen = {"PYTHONHASHSEED": "0", **env}
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
    if _FORCED in env.get("XLA_FLAGS", ""):
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


def _tail(log: Path, size: int = 4000) -> str:
    with open(log, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - size, 0))
        return file.read().decode("utf-8", "replace").strip()
