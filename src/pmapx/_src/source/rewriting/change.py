"""A file before and after: what ``migrate`` and ``check --fix`` show and write."""

import difflib
import os
from typing import Protocol

from pmapx._src.source.command_error import reason
from pmapx._src.source.rewriting import atomic_write


class Change(Protocol):
    """A file's path, and its bytes before and after."""

    @property
    def path(self) -> str: ...
    @property
    def before(self) -> bytes: ...
    @property
    def after(self) -> bytes: ...


def diff(change: Change) -> str:
    """Returns a change as ``diff -u`` and ``git apply`` have it."""
    path = os.path.normpath(change.path).lstrip(os.sep)
    before, after = _lines(change.before), _lines(change.after)
    old = f"a/{path}" if change.before or os.path.exists(change.path) else os.devnull
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(before, after, old, f"b/{path}")
    )


def write(change: Change) -> str:
    """Writes a changed file; returns why it cannot be written, "" if it was."""
    try:
        atomic_write.write(change.path, change.after, expected=change.before)
    except OSError as error:
        return reason(error)
    return ""


def _lines(data: bytes) -> list[str]:
    # Only \n ends a line, as for diff; splitlines would split at more.
    text = data.decode("utf-8", "backslashreplace")
    *lines, last = text.split("\n")
    return [line + "\n" for line in lines] + ([last] if last else [])
