"""Writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile

from pmapx._src.codemod.write.rewrite import Rewriting


class ChangedMeanwhileError(OSError):
    """The file is no longer what was read."""


def write(file: Rewriting) -> None:
    """Puts the new text in the place of the old, in one step that nothing can cut in half.

    A link is followed, so that it stays one; mode and owner's rights stay too. Raises ``OSError``
    and leaves the file as it was if it cannot be written, or is not what was read any more.
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
        # Ctrl-C too: the file is as it was, and nothing lies beside it.
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
