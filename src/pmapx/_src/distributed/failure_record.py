"""How a process failed, as it reports to the launcher and its peers before it ends.

Does not import JAX, since the launcher uses it too.
"""

import contextlib
import dataclasses
import json
import os
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

# The file to which a process of ``pmapx run -n`` writes its failure for the launcher.
FILE = "PMAPX_FAILURE_FILE"
_TRACEBACK_CHARACTERS = 16_000


@dataclasses.dataclass(frozen=True)
class Failure:
    """An uncaught exception, or a non-zero exit, of one process."""

    process: int
    status: int
    summary: str  # The exception in one line.
    trace: str
    seconds: float  # By the monotonic clock that all processes of a machine share.
    cause: int | None = None  # The process whose loss or failure caused this one, if known.

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def __str__(self) -> str:
        after = "" if self.cause is None else f" after process {self.cause} was lost"
        return f"process {self.process} failed{after}: {self.summary}"


def from_json(text: str) -> Failure:
    return Failure(**json.loads(text))


def of_exception(
    process: int, error: BaseException, trace: TracebackType | None, cause: int | None = None
) -> Failure:
    """Describes an uncaught exception.

    >>> of_exception(1, SystemExit(3), None).summary
    'SystemExit: 3'
    """
    lines = traceback.format_exception(type(error), error, trace)
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    return Failure(
        process,
        exit_status(error),
        summary.splitlines()[0],
        "".join(lines)[-_TRACEBACK_CHARACTERS:].rstrip("\n"),
        time.monotonic(),
        cause,
    )


def say(*lines: str) -> None:
    """Prints lines past Python's buffers: JAX may be about to end the process."""
    os.write(2, "".join(f"{line}\n" for line in lines).encode(errors="replace"))


def exit_status(error: BaseException) -> int:
    """Returns the exit status with which Python ends after an uncaught exception.

    >>> exit_status(SystemExit(None)), exit_status(SystemExit("why")), exit_status(ValueError())
    (0, 1, 1)
    """
    if not isinstance(error, SystemExit):
        return 1
    code = error.code
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def write_for_launcher(failure: Failure) -> None:
    """Reports a failure to the launcher, if there is one, unless this process already has."""
    path = os.environ.get(FILE)
    if path is None or os.path.exists(path):
        return
    with contextlib.suppress(OSError):
        unfinished = f"{path}.unfinished"
        Path(unfinished).write_text(failure.as_json(), encoding="utf-8")
        os.replace(unfinished, path)


def read(files: Mapping[int, str]) -> dict[int, Failure]:
    """Returns the failures that processes reported, by process."""
    found = {}
    for process, path in files.items():
        with contextlib.suppress(OSError, ValueError, TypeError):
            found[process] = from_json(Path(path).read_text(encoding="utf-8"))
    return found
