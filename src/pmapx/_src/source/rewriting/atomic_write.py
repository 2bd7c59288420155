"""Writing files atomically: the new content or the old, never a part."""

import contextlib
import os
import stat

from pmapx._src.source.command_error import CommandError, reason


def check(path: str) -> None:
    """Raises ``CommandError`` if an output file clearly cannot be written, before long work."""
    folder = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path):
        raise CommandError(f"cannot write {path}: it is a directory")
    if not os.path.isdir(folder):
        raise CommandError(f"cannot write {path}: no such file or directory")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise CommandError(f"cannot write {path}: permission denied")


def write_output(path: str, text: str) -> None:
    """Writes an output file; special files, such as ``/dev/stdout``, are written to directly.

    >>> import tempfile
    >>> write_output(tempfile.mkdtemp() + "/missing/page.html", "<p>")
    Traceback (most recent call last):
    ...
    pmapx...CommandError: cannot write ...: no such file or directory
    """
    data = text.encode("utf-8", "replace")
    try:
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            with open(path, "wb") as stream:
                stream.write(data)
        else:
            write(path, data)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {reason(error)}") from None


def write(path: str, data: bytes, *, expected: bytes | None = None) -> None:
    """Replaces the content of a file, or creates it; follows links and keeps the mode.

    Raises ``OSError`` and leaves the file unchanged if it cannot be written, or if its content is
    no longer ``expected``, which is empty for a file that does not exist.
    """
    path = os.path.realpath(path)
    if os.path.isdir(path):
        raise IsADirectoryError("it is a directory")
    if expected is not None:
        is_new = not expected and not os.path.exists(path)
        with contextlib.nullcontext() if is_new else open(path, "rb") as current:
            if current is not None and current.read() != expected:
                raise OSError("it was changed by another program")
    mode = _default_mode()
    if os.path.exists(path):
        if not os.access(path, os.W_OK):
            raise PermissionError("it is read-only")
        mode = stat.S_IMODE(os.stat(path).st_mode)
    # Most commands write nothing.
    import tempfile

    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".pmapx-")
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(data)
            new.flush()
            os.fsync(new.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C too.
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _default_mode() -> int:
    mask = os.umask(0)  # The only way to read the mask is to set it.
    os.umask(mask)
    return 0o666 & ~mask
