"""Colors, next steps and progress on a terminal."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from pmapx._src.source.command_error import CommandError

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

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


def format_option(*choices: str, help: str = "Output format.") -> Callable[[Any], Any]:
    choice = click.Choice(choices)
    return click.option(
        "--format", "layout", type=choice, default="text", show_default=True, help=help
    )


def echo(text: str, color: bool | None, *, err: bool = False) -> None:
    """Prints text, if there is any; what is not UTF-8, as in file names, is replaced."""
    if text:
        shown = text.encode("utf-8", "replace").decode("utf-8")
        click.echo(shown, err=err, color=resolve_color(color))


def next_step(text: str, color: bool | None = None, *, err: bool = False) -> None:
    """Prints the last line of a command: what to do now."""
    echo(click.style(f"Next: {text}", dim=True), color, err=err)


def check_paths(paths: Sequence[str]) -> None:
    """Ends the command if a path does not exist."""
    for path in paths:
        if not os.path.exists(path):
            raise CommandError(f"no such file or directory: {path!r}")


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


class Progress:
    """Progress on standard error of work that takes longer than a second.

    On a terminal it is a bar; in a pipe or file, a line now and then, more rarely as time passes.
    """

    def __init__(self, label: str, *, is_ticking: bool = False) -> None:
        """``label`` may have a place for the current step.

        With ``is_ticking`` the time goes on between updates; the work must not fork then.
        """
        self._label = label
        self._started = time.monotonic()
        self._step = ""
        self._next_line = PIPE_PATIENCE
        self._at = (0, 0)
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True) if is_ticking else None
        self._bar: RichProgress | None = None

    def __enter__(self) -> Progress:
        if self._ticker is not None:
            self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        if self._ticker is not None:
            self._ticker.join()
        if self._bar is not None:
            self._bar.stop()

    def advance(self, done: int, total: int) -> None:
        """Shows how much of the work is done."""
        with self._lock:
            self._at = (done, total)
            self._show_count()

    def show(self, step: str, elapsed: float) -> None:
        """Shows the current step of work of unknown length, and its elapsed seconds."""
        if step != self._step:
            self._step, self._next_line = step, PIPE_PATIENCE
        self._show(self._label.format(step), f"{elapsed:.0f} s", elapsed)

    def _tick(self) -> None:
        while not self._has_ended.wait(PATIENCE):
            with self._lock:
                self._show_count()

    def _show_count(self) -> None:
        done, total = self._at
        elapsed = time.monotonic() - self._started
        self._show(self._label, f"{done:,} of {total:,}, {elapsed:.0f} s", elapsed, done, total)

    def _show(
        self, label: str, state: str, elapsed: float, done: int = 0, total: int | None = None
    ) -> None:
        if not sys.stderr.isatty():
            if elapsed >= self._next_line:
                self._next_line = elapsed + min(max(elapsed, PIPE_PATIENCE), _LONGEST_PAUSE)
                click.echo(f"pmapx: {label}: {state}", err=True)
        elif self._bar is not None or elapsed >= PATIENCE:
            bar = self._bar = self._bar or _opened_bar(label)
            bar.update(bar.task_ids[0], description=label, completed=done, total=total, state=state)


def wants_traceback() -> bool:
    """Returns whether the user asks for tracebacks of pmapx's own errors."""
    return os.environ.get("PMAPX_TRACEBACK", "") not in ("", "0")


def _opened_bar(label: str) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    description = TextColumn("{task.description}", markup=False)
    state = TextColumn("{task.fields[state]}", markup=False)
    bar = Progress(description, BarColumn(), state, console=Console(stderr=True), transient=True)
    bar.add_task(label, total=None, state="")
    bar.start()
    return bar
