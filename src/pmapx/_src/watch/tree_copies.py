"""Copies of the user's tree, one for each run, so that no run sees what another wrote.

Files are copied up to a size. Larger ones and virtual environments are links to the originals, and
a run that writes to such a file is noticed. Git's folder and caches are left out.
"""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pmapx._src.source.command_error import CommandError, reason
from pmapx._src.source.discovery import CACHES, is_environment

# The size up to which a file is copied, and the size of all copies.
SMALL = 64 << 20
MOST_COPIED = 1 << 30


class CannotRunError(CommandError):
    """The command cannot be started; the message is one line."""


@dataclasses.dataclass(frozen=True, slots=True)
class TreeCopy:
    """A copy of a tree, and the state of the files in the tree that it has links to."""

    root: Path
    path: Path
    linked: Mapping[Path, tuple[int, int]]

    def written(self) -> list[Path]:
        """Returns the files of the tree itself that changed since the copy was made."""
        return [path for path, state in self.linked.items() if _state(path) != state]

    def original(self, path: str) -> str:
        """Returns a path in the tree for one in the copy, and others as they are."""
        if path and Path(path).is_relative_to(self.path):
            return str(self.root / Path(path).relative_to(self.path))
        return path

    def redirected(self, text: str) -> str:
        """Returns an argument or path with the copy in place of the tree."""
        name, equals, path = text.rpartition("=")
        if not os.path.isabs(path):
            return text
        below = os.path.relpath(os.path.realpath(path), os.path.realpath(self.root))
        copy = self.path / below
        # Links in the copy, such as an environment, are used as they are.
        is_inside = os.path.realpath(copy).startswith(os.path.realpath(self.path))
        if below.startswith("..") or not is_inside:
            return text
        return f"{name}{equals}{copy}"


def tree_around(here: Path, files: Sequence[Path]) -> Path:
    """Returns the smallest folder with all files and the current folder."""
    root = Path(os.path.commonpath([here, *(file.parent for file in files)]))
    if root == Path(root.anchor) or root == Path.home():
        raise CannotRunError(
            f"it copies the folder that contains the files and the current folder, which is "
            f"{root}: run it in the project's folder"
        )
    return root


def tree_around_paths(paths: Sequence[str]) -> Path:
    """Returns the smallest folder with some files and folders, and the current folder."""
    given = [Path(os.path.realpath(path)) for path in paths]
    files = [path / "_" if path.is_dir() else path for path in given]
    return tree_around(Path(os.path.realpath(os.curdir)), files)


def copy_beside(root: Path, folder: Path, changed: Mapping[Path, bytes]) -> TreeCopy:
    """Copies a tree into an empty folder, with links to what is next to the tree."""
    root = Path(os.path.realpath(root))
    folder.mkdir(parents=True)
    with contextlib.suppress(OSError):  # Not every folder above can be listed.
        for path in root.parent.iterdir():
            if path != root and not _holds(path, folder):
                (folder / path.name).symlink_to(path)
    copy = folder / (root.name or "root")
    try:
        return TreeCopy(root, copy, copy_tree(root, copy, changed))
    except OSError as error:
        why = f"cannot copy {root} to run the command in: {reason(error)}"
        raise CannotRunError(why) from None


def copy_tree(root: Path, into: Path, changed: Mapping[Path, bytes]) -> dict[Path, tuple[int, int]]:
    """Makes ``into`` a copy of ``root`` in which the changed files have their new contents.

    ``changed`` is by real path, so that a file that is reached through a link is changed there too.
    Returns the state of the files that are links to those in ``root``.
    """
    copied, linked = 0, {}
    root = Path(os.path.realpath(root))
    added = [path for path in changed if path.is_relative_to(root) and not path.exists()]
    for folder, folders, files in os.walk(root):
        here = into / os.path.relpath(folder, root)
        here.mkdir(parents=True, exist_ok=True)
        for name in list(folders):
            path = Path(folder, name)
            if name in CACHES:
                folders.remove(name)
            elif path.is_symlink():
                folders.remove(name)
                _link(path, here / name, root, into)
            elif is_environment(str(path), name) or _holds(path, into):
                folders.remove(name)
                if not _holds(path, into):
                    (here / name).symlink_to(path)
        for name in files:
            path = Path(folder, name)
            new = changed.get(Path(os.path.realpath(path)))
            if new is not None:
                (here / name).write_bytes(new)
                shutil.copymode(path, here / name)
            elif path.is_symlink():
                _link(path, here / name, root, into)
            elif path.is_file():
                size = path.stat().st_size
                # Python imports from the folder of a link's target, so that modules are copied.
                is_code = name.endswith((".py", ".ipynb"))
                is_small = size <= SMALL and copied + size <= MOST_COPIED
                if (is_code or is_small) and os.access(path, os.R_OK):
                    copied += size
                    shutil.copy2(path, here / name)
                else:
                    (here / name).symlink_to(path)
                    linked[path] = _state(path)
    for path in added:
        (into / path.relative_to(root)).write_bytes(changed[path])
    return linked


def _link(path: Path, copy: Path, root: Path, into: Path) -> None:
    """Copies a link: to the copy of its target, or to the target if that is outside the tree."""
    target = os.path.realpath(path)
    if target.startswith(str(root) + os.sep):
        copy.symlink_to(into / os.path.relpath(target, root))
    else:
        copy.symlink_to(target)


def _holds(path: Path, other: Path) -> bool:
    """Returns whether a folder is another one, or contains it."""
    return Path(os.path.realpath(other)).is_relative_to(os.path.realpath(path))


def _state(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
