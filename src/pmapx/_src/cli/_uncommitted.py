"""What git has no copy of: files that a command is about to overwrite."""

from __future__ import annotations

import os
import subprocess

import click

# Files that a warning lists.
_LISTED = 20


def warn(paths: list[str]) -> None:
    """Lists files of which git has no copy as they are now: the change cannot be undone there."""
    outside, uncommitted = [], []
    for folder in sorted({os.path.dirname(os.path.abspath(path)) for path in paths}):
        names = [p for p in paths if os.path.dirname(os.path.abspath(p)) == folder]
        status = _git_status(folder, [os.path.basename(name) for name in names])
        if status is None:
            outside += names
        else:
            uncommitted += [name for name in names if os.path.basename(name) in status]
    if outside:
        _warn("not in a git repository, so that the change cannot be undone", outside)
    if uncommitted:
        _warn("uncommitted changes before the rewrite", uncommitted)


def _warn(what: str, paths: list[str]) -> None:
    more = f"\n  and {len(paths) - _LISTED} more" * (len(paths) > _LISTED)
    listed = "".join(f"\n  {path}" for path in paths[:_LISTED])
    click.echo(f"pmapx: warning: {what}:{listed}{more}", err=True)


def _git_status(folder: str, names: list[str]) -> list[str] | None:
    """Returns the files of a folder that git does not have as they are; None outside of git."""
    try:
        # Runs no monitor that the repository configures.
        status = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "status", "--porcelain", "-z", "--ignored"]
            + ["--untracked-files=all", "--", *names],
            cwd=folder,
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if status.returncode:
        return None
    # The name that a file was renamed from follows in an entry of its own.
    entries = [entry for entry in os.fsdecode(status.stdout).split("\0") if entry[2:3] == " "]
    changed = {os.path.basename(entry[3:].rstrip("/")) for entry in entries}
    # An ignored folder stands for what is in it.
    is_all = any(entry.startswith("!!") and entry.endswith("/") for entry in entries)
    return [name for name in names if is_all or name in changed]
