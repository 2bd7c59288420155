"""Which files to read: those below the paths that the user gave, and nothing outside them."""

import dataclasses
import fnmatch
import operator
import os
from collections.abc import Iterator, Sequence

from pmapx._src.source.command_error import reason

SUFFIXES = (".py", ".pyi", ".ipynb")
# Folders without code of the program: histories and caches, and what is installed.
CACHES = frozenset(
    {
        ".git", ".hg", ".svn", "__pycache__", ".hypothesis", ".ipynb_checkpoints", ".mypy_cache",
        ".pytest_cache", ".ruff_cache",
    }
)  # fmt: skip
ENVIRONMENTS = frozenset(
    {
        "__pypackages__", "node_modules", "site-packages", "venv", ".venv", ".tox", ".nox", ".eggs",
    }
)  # fmt: skip

_JAX = os.path.join(os.sep, "jax", "_src", "")


@dataclasses.dataclass(frozen=True, slots=True)
class Unreadable:
    """A path that was to be read and could not be, and why in one line."""

    path: str
    reason: str


def files_below(paths: Sequence[str], *, exclude: Sequence[str] = ()) -> Iterator[str | Unreadable]:
    """Yields each Python file and notebook once, always including a path that is itself a file."""
    seen: set[str] = set()
    roots = [os.path.realpath(path) for path in paths]
    for path, root in zip(paths, roots, strict=True):
        if os.path.isdir(path):
            found = _walk(path, root, roots, exclude)
        elif os.path.exists(path):
            found = iter([(path, root)])
        else:
            found = iter([(Unreadable(path, "no such file or folder"), "")])
        for item, real in found:
            if isinstance(item, Unreadable):
                yield item
            # A link to a file that is also met directly must not be read twice.
            elif real not in seen:
                seen.add(real)
                yield item


def _walk(
    folder: str, real_folder: str, roots: Sequence[str], exclude: Sequence[str]
) -> Iterator[tuple[str | Unreadable, str]]:
    """Yields files with their real paths, which need no system call where no link is."""
    try:
        entries = sorted(os.scandir(folder), key=operator.attrgetter("name"))
    except OSError as error:
        yield Unreadable(folder, reason(error)), ""
        return
    folders = []
    for entry in entries:
        if exclude and is_excluded(entry.path, entry.name, exclude):
            continue
        try:
            is_named = entry.name.endswith(SUFFIXES)
            if is_named and entry.is_file(follow_symlinks=False):
                yield entry.path, real_folder + os.sep + entry.name
            elif entry.is_dir(follow_symlinks=False):
                if entry.name not in CACHES and not is_environment(entry.path, entry.name):
                    folders.append(entry)
            elif is_named and entry.is_symlink():
                real = os.path.realpath(entry.path)
                if _is_inside(real, roots):
                    yield entry.path, real
        except OSError as error:
            yield Unreadable(entry.path, reason(error)), ""
    for entry in folders:
        yield from _walk(entry.path, real_folder + os.sep + entry.name, roots, exclude)


def is_environment(path: str, name: str) -> bool:
    """Returns whether a folder has installed packages."""
    return name in ENVIRONMENTS or os.path.exists(os.path.join(path, "pyvenv.cfg"))


def is_excluded(path: str, name: str, exclude: Sequence[str]) -> bool:
    """Returns whether a pattern fits the name, the path or a folder in it."""
    shown = os.path.normpath(path).replace(os.sep, "/")
    return any(
        fnmatch.fnmatch(name, pattern)
        or fnmatch.fnmatch(shown, pattern)
        or fnmatch.fnmatch(shown, "*/" + pattern)
        for pattern in (pattern.rstrip("/") for pattern in exclude)
    )


def is_part_of_jax(path: str) -> bool:
    """Returns whether a file is part of JAX's own implementation: it makes pmap, and uses none.

    >>> is_part_of_jax("jax/_src/api.py"), is_part_of_jax("jax/tests/pmap_test.py")
    (True, False)
    """
    return _JAX in os.sep + path


def _is_inside(real: str, roots: Sequence[str]) -> bool:
    return os.path.isfile(real) and any(
        real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots
    )
