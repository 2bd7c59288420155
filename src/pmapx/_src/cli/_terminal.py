"""Colors, one-line errors, next steps and progress on a terminal."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import click

# Seconds before progress is shown on a terminal, and in a pipe or file before its first line.
PATIENCE = 1.0
PIPE_PATIENCE = 10.0
# The longest time between two lines there.
_LONGEST_PAUSE = 60.0


def resolve_color(wanted: bool | None) -> bool | None:
    """Applies NO_COLOR and FORCE_COLOR if the option is not given; else click decides."""
    if wanted is None and os.environ.get("NO_COLOR"):
        return False
    if wanted is None and os.environ.get("FORCE_COLOR"):
        return True
    return wanted


exclude_option = click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Skip matching files and directories."
)
color_option = click.option(
    "--color/--no-color", default=None, help="Use colors; by default only on a terminal."
)


def echo(text: str, color: bool | None, *, err: bool = False) -> None:
    """Prints text, if there is any; what is not UTF-8, as in file names, is replaced."""
    if text:
        shown = text.encode("utf-8", "replace").decode("utf-8")
        click.echo(shown, err=err, color=resolve_color(color))


def next_step(text: str, color: bool | None = None, *, err: bool = False) -> None:
    """Prints the last line of a command: what to do now."""
    echo(click.style(f"Next: {text}", dim=True), color, err=err)


def check_paths(ctx: click.Context, paths: Sequence[str]) -> None:
    """Ends the command if a path does not exist."""
    for path in paths:
        if not os.path.exists(path):
            fail(ctx, f"no such file or directory: {path!r}")


def colored_diff(text: str) -> str:
    """Returns a diff with colors for a terminal."""
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
    """Ends the command with a one-line error."""
    click.echo(f"pmapx: {message}", err=True)
    ctx.exit(2)


class _Lines:
    """Progress in a pipe or file: a line now and then, more rarely as time passes."""

    def __init__(self) -> None:
        self._due = PIPE_PATIENCE

    def show(self, text: str, elapsed: float) -> None:
        if elapsed >= self._due:
            self._due = elapsed + min(max(elapsed, PIPE_PATIENCE), _LONGEST_PAUSE)
            click.echo(f"pmapx: {text}", err=True)


class Bar:
    """Progress on standard error, for work that takes longer than a second: a bar or lines."""

    def __init__(self, label: str, *, is_ticking: bool = False) -> None:
        """With ``is_ticking`` it goes on between updates; the work must not fork then."""
        self._label = label
        self._started = time.monotonic()
        self._lines = _Lines()
        self._at = (0, 0)
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True) if is_ticking else None
        self._show: Callable[[int, int], None] | None = None
        self._progress: object = None

    def __enter__(self) -> Bar:
        if self._ticker is not None:
            self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        if self._ticker is not None:
            self._ticker.join()
        if self._progress is not None:
            self._progress.stop()  # type: ignore[attr-defined]

    def advance(self, done: int, total: int) -> None:
        """Updates the bar."""
        with self._lock:
            self._at = (done, total)
            self._advance(done, total)

    def _tick(self) -> None:
        while not self._has_ended.wait(PATIENCE):
            with self._lock:
                self._advance(*self._at)

    def _advance(self, done: int, total: int) -> None:
        elapsed = time.monotonic() - self._started
        if not sys.stderr.isatty():
            self._lines.show(f"{self._label}: {done:,} of {total:,}, {elapsed:.0f} s", elapsed)
            return
        if self._show is None:
            if elapsed < PATIENCE:
                return
            self._open()
        if self._show is not None:
            self._show(done, total)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        progress = Progress(console=Console(stderr=True), transient=True)
        task = progress.add_task(self._label, total=None)
        progress.start()
        self._progress = progress
        self._show = lambda done, total: progress.update(task, completed=done, total=total)


class Seconds:
    """The elapsed seconds on standard error, for work of unknown length: one line, or lines."""

    def __init__(self, label: str) -> None:
        """``label`` is a format string for the current step."""
        self._label = label
        self._width = 0
        self._step = ""
        self._lines = _Lines()

    def __enter__(self) -> Seconds:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            click.echo("\r" + " " * self._width + "\r", nl=False, err=True)

    def show(self, step: str, elapsed: float) -> None:
        """Shows the current step and its elapsed time."""
        text = f"{self._label.format(step)}: {elapsed:.0f} s"
        if not sys.stderr.isatty():
            if step != self._step:
                self._step, self._lines = step, _Lines()
            self._lines.show(text, elapsed)
        elif elapsed >= PATIENCE:
            self._width = max(self._width, len(text))
            click.echo(f"\r{text:<{self._width}}", nl=False, err=True)
