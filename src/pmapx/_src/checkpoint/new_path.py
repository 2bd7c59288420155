"""A new file or folder that appears complete or not at all."""

import atexit
import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator

from pmapx._src.checkpoint.base import CheckpointError


def check(old: str, new: str, *, force: bool) -> None:
    """Refuses a new path that would touch the old checkpoint or overwrite something unasked."""
    if not os.path.exists(old):
        raise CheckpointError(f"no such file or folder: {old}")
    before, after = os.path.realpath(old), os.path.realpath(new)
    if before == after or (os.path.exists(new) and os.path.samefile(old, new)):
        raise CheckpointError(
            f"{new} is the old checkpoint, which is never changed; choose another path"
        )
    if after.startswith(before + os.sep) or before.startswith(after + os.sep):
        raise CheckpointError(f"{old} and {new} are inside one another; choose another path")
    parent = os.path.dirname(after)
    if not os.path.isdir(parent):
        raise CheckpointError(f"cannot write {new}: there is no folder {parent}")
    if not os.path.lexists(new):
        return
    if os.path.isdir(after) != os.path.isdir(before):
        kind = "folder" if os.path.isdir(after) else "file"
        raise CheckpointError(f"{new} is a {kind} and {old} is not; name another")
    if not force:
        raise CheckpointError(f"{new} exists; --force overwrites it")


@contextlib.contextmanager
def written(old: str, new: str) -> Iterator[str]:
    """Yields a path to write to; what it holds in the end becomes ``new``.

    A file gets the mode of ``old``: a checkpoint that only its owner reads stays so.

    On any exception, Ctrl-C included, nothing is left behind and ``new`` is what it was.
    """
    new = os.path.realpath(new)
    beside = os.path.join(os.path.dirname(new), f".pmapx-{secrets.token_hex(8)}")
    made, replaced = os.path.join(beside, "new"), os.path.join(beside, "replaced")
    try:
        os.mkdir(beside, 0o700)  # Not by tempfile: Ctrl-C may come before its name is known here.
        yield made
        _flush(made)
        if os.path.isfile(made):
            shutil.copymode(old, made)
        if os.path.isdir(new):  # A folder cannot replace one that has files in it.
            os.rename(new, replaced)
        os.replace(made, new)
    except BaseException:
        if os.path.exists(replaced) and not os.path.exists(new):
            os.rename(replaced, new)
        # Threads of Orbax may still write there; at exit they have ended.
        atexit.register(shutil.rmtree, beside, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _flush(path: str) -> None:
    """Has the disk hold what was written, so that a crash later leaves no empty file."""
    files = [path] if os.path.isfile(path) else []
    for folder, _, names in os.walk(path):
        files += [os.path.join(folder, name) for name in names]
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
