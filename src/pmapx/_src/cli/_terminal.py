"""What commands share on a terminal: colours, errors of one line, a bar for long runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import click

# A run that is over sooner shows no bar.
PATIENCE = 1.0


def colour(wanted: bool | None) -> bool | None:
    """NO_COLOR and FORCE_COLOR count where the option does not say; click asks the terminal."""
    if wanted is None and os.environ.get("NO_COLOR"):
        return False
    if wanted is None and os.environ.get("FORCE_COLOR"):
        return True
    return wanted


def coloured_diff(text: str) -> str:
    """Returns a diff with colours for a terminal."""
    lines = []
    # Only \n ends a line of a diff; splitlines would split at more.
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith(("---", "+++")):
            lines.append(click.style(line, bold=True))
        elif line.startswith(("+", "-", "@")):
            lines.append(click.style(line, fg={"+": "green", "-": "red", "@": "cyan"}[line[0]]))
        else:
            lines.append(line)
    return "\n".join(lines)


def fail(ctx: click.Context, message: str) -> NoReturn:
    """Ends the command with one line on what is wrong."""
    click.echo(f"pmapx: {message}", err=True)
    ctx.exit(2)


class Bar:
    """A progress bar on standard error, once a run has taken longer than a person waits."""

    def __init__(self, doing: str) -> None:
        """Shows nothing yet; ``doing`` is the word beside it."""
        self._doing = doing
        self._started = time.monotonic()
        self._show: Callable[[int, int], None] | None = None
        self._progress: object = None

    def __enter__(self) -> Bar:
        """Starts the clock."""
        return self

    def __exit__(self, *_: object) -> None:
        """Takes the bar away."""
        if self._progress is not None:
            self._progress.stop()  # type: ignore[attr-defined]

    def advance(self, done: int, total: int) -> None:
        """Moves the bar."""
        if self._show is None:
            if not sys.stderr.isatty() or time.monotonic() - self._started < PATIENCE:
                return
            self._open()
        if self._show is not None:
            self._show(done, total)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        progress = Progress(console=Console(stderr=True), transient=True)
        task = progress.add_task(self._doing, total=None)
        progress.start()
        self._progress = progress
        self._show = lambda done, total: progress.update(task, completed=done, total=total)


class Seconds:
    """One line on standard error that counts the seconds of something whose length nobody knows."""

    def __init__(self, doing: str) -> None:
        """Shows nothing yet; ``doing`` has a place for what is done now."""
        self._doing = doing
        self._width = 0

    def __enter__(self) -> Seconds:
        """Waits for the first second."""
        return self

    def __exit__(self, *_: object) -> None:
        """Takes the line away."""
        if self._width:
            click.echo("\r" + " " * self._width + "\r", nl=False, err=True)

    def show(self, now: str, passed: float) -> None:
        """Shows what is done now, and for how long."""
        if sys.stderr.isatty() and passed >= PATIENCE:
            text = f"{self._doing.format(now)}: {passed:.0f} s"
            self._width = max(self._width, len(text))
            click.echo(f"\r{text:<{self._width}}", nl=False, err=True)
