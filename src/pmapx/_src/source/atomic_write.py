"""Writing a file completely or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile

from pmapx._src.source.change import Change


class ChangedMeanwhileError(OSError):
    """The file is no longer what was read."""


def write(file: Change) -> None:
    """Replaces a file by its new version in one step.

    Follows a symbolic link, and keeps the file's mode. Raises ``OSError`` and leaves the file
    unchanged if it cannot be written, or is no longer what was read.
    """
    path = os.path.realpath(file.path)
    with open(path, "rb") as current:
        if current.read() != file.before:
            raise ChangedMeanwhileError("it changed while it was read")
        mode = stat.S_IMODE(os.fstat(current.fileno()).st_mode)
    if not os.access(path, os.W_OK):
        raise PermissionError("it is read-only")
    descriptor, beside = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".pmapx-")
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(file.after)
            new.flush()
            os.fsync(new.fileno())
        os.chmod(beside, mode)
        os.replace(beside, path)
    except BaseException:
        # Ctrl-C too: the file is unchanged, and no temporary file stays.
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
