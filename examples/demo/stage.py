"""Commands run one after the other, with progress shown, and what they said and took."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

WIDTH = min(shutil.get_terminal_size((100, 24)).columns, 110)
IS_TERMINAL = sys.stdout.isatty()


@dataclasses.dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def last_line(self) -> str:
        lines = (self.out if self.status == 0 else self.err).strip().splitlines()
        return lines[-1] if lines else f"exit status {self.status}"


@dataclasses.dataclass
class Stage:
    """Where the demo runs: a folder of the checkout, in which temporary files stay too."""

    folder: Path
    steps: int
    number: int = 0
    started: float = dataclasses.field(default_factory=time.monotonic)

    def chapter(self, title: str) -> None:
        self.number += 1
        so_far = f"{time.monotonic() - self.started:.0f} s"
        say(f"\n{bold(f'{self.number} of {self.steps}  {title}')}  ({so_far})")

    def run(self, shown: str, *command: str, cwd: str = ".") -> Ended:
        """Runs a command; on a terminal a clock runs beside it."""
        say(dim(f"  $ {shown}"))
        start = time.monotonic()
        temporary = self.folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        with clock():
            done = subprocess.run(
                command,
                cwd=self.folder / cwd,
                env={**os.environ, "TMPDIR": str(temporary), "COLUMNS": str(WIDTH - 4)},
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - start)


@contextlib.contextmanager
def clock() -> Iterator[None]:
    """Seconds that pass, on a terminal; elsewhere nothing, since each command has its line."""
    if not IS_TERMINAL:
        yield
        return
    over, start = threading.Event(), time.monotonic()

    def tick() -> None:
        while not over.wait(0.1):
            print(f"\r    {time.monotonic() - start:5.1f} s", end="", flush=True)
        print("\r" + " " * 20 + "\r", end="", flush=True)

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        yield
    finally:
        over.set()
        ticking.join()


def say(text: str) -> None:
    print(text, flush=True)


def quote(text: str, keep: int = 12) -> None:
    """Prints the output of a command, indented; long lines and long outputs are shortened."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines[:keep]:
        say("    " + (line if len(line) <= WIDTH - 4 else line[: WIDTH - 7] + "..."))
    if len(lines) > keep:
        say(f"    ... and {len(lines) - keep} more")


def bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if is_colored() else text


def dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m" if is_colored() else text


def is_colored() -> bool:
    return IS_TERMINAL and not os.environ.get("NO_COLOR")
