"""Writing a page whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile


class UnwritableError(Exception):
    """A page cannot be written there; the message is one line that says why."""


def write(path: str, page: str) -> None:
    """Writes a page in one step, so that nobody ever sees half of one.

    What stood there before stays if it fails, which raises ``UnwritableError``. Something that is
    no plain file, such as ``/dev/stdout``, is written to as it is.

    >>> import tempfile
    >>> write(tempfile.mkdtemp() + "/missing/page.html", "<p>")
    Traceback (most recent call last):
    ...
    pmapx._src.pages.writing.UnwritableError: cannot write ...: no such file or directory
    """
    data = page.encode("utf-8", "replace")
    try:
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            with open(path, "wb") as stream:
                stream.write(data)
        else:
            _replace(os.path.realpath(path), data)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UnwritableError(f"cannot write {path}: {why}") from None


def check(path: str) -> None:
    """Raises ``UnwritableError`` if a page can surely not be written there: before long work."""
    folder = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path):
        raise UnwritableError(f"cannot write {path}: it is a folder")
    if not os.path.isdir(folder):
        raise UnwritableError(f"cannot write {path}: no such file or directory")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UnwritableError(f"cannot write {path}: permission denied")


def _replace(path: str, data: bytes) -> None:
    if os.path.isdir(path):
        raise IsADirectoryError(21, "it is a folder")
    mode = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else None
    folder = os.path.dirname(path)
    descriptor, beside = tempfile.mkstemp(dir=folder, prefix=".pmapx-")
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(data)
            new.flush()
            os.fsync(new.fileno())
        os.chmod(beside, _usual_mode() if mode is None else mode)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _usual_mode() -> int:
    """What a new file would have: only setting the mask tells what it is."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
