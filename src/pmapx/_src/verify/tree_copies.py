"""A copy of the user's tree with some files changed, cheap enough to make for one run.

Python files and small files are copied. Large ones and virtual environments are links to the
originals. Git's folder and caches are left out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

# The size up to which a file is copied, and the size of all copies.
SMALL = 1 << 20
MOST_COPIED = 1 << 30
_LEFT_OUT = frozenset(
    {
        ".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache",
        ".hypothesis", ".ipynb_checkpoints",
    }
)  # fmt: skip
_LINKED = frozenset({"node_modules", "site-packages", "venv", ".venv", ".tox", ".nox", ".eggs"})


def copy_tree(root: Path, into: Path, changed: Mapping[Path, bytes]) -> None:
    """Makes ``into`` a copy of ``root`` in which the changed files have their new contents.

    ``changed`` is by real path, so that a file that is reached through a link is changed there too.
    """
    copied = 0
    root = Path(os.path.realpath(root))
    for folder, folders, files in os.walk(root):
        here = into / os.path.relpath(folder, root)
        here.mkdir(parents=True, exist_ok=True)
        for name in list(folders):
            path = Path(folder, name)
            if name in _LEFT_OUT:
                folders.remove(name)
            elif path.is_symlink():
                folders.remove(name)
                _link(path, here / name, root, into)
            elif name in _LINKED or (path / "pyvenv.cfg").exists() or _is_same(path, into):
                folders.remove(name)
                if not _is_same(path, into):
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
                if name.endswith(".py") or (size <= SMALL and copied + size <= MOST_COPIED):
                    copied += size
                    shutil.copy2(path, here / name)
                else:
                    (here / name).symlink_to(path)


def _link(path: Path, copy: Path, root: Path, into: Path) -> None:
    """Copies a link: to the copy of its target, or to the target if that is outside the tree."""
    target = os.path.realpath(path)
    if target.startswith(str(root) + os.sep):
        copy.symlink_to(into / os.path.relpath(target, root))
    else:
        copy.symlink_to(target)


def _is_same(path: Path, other: Path) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)
