"""Which files can have findings, by a look at the bytes of every file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from pmapx._src.source import files as sources
from pmapx._src.source.batches import Load
from pmapx._src.source.discovery import Unreadable


@dataclasses.dataclass(slots=True)
class Sifted:
    """The files with uses, those that import modules of the project, and those not readable."""

    uses: dict[str, Load]
    # Files without uses, by the names of the project on their lines with imports.
    importers: dict[str, set[bytes]]
    unreadable: dict[str, str]

    def add(self, other: Sifted) -> None:
        """Adds what was found in other files."""
        self.uses |= other.uses
        self.importers |= other.importers
        self.unreadable |= other.unreadable


def sift(
    has_uses: Callable[[bytes], bool], modules: frozenset[bytes], paths: Iterable[str]
) -> Sifted:
    """Reads files, and sets those apart whose bytes may have a use of what the rules look for."""
    sifted = Sifted({}, {}, {})
    for path in paths:
        data = sources.read_code(path)
        if isinstance(data, Unreadable):
            sifted.unreadable[path] = data.reason
        elif has_uses(data):
            sifted.uses[path] = Load.of(path, data)
        else:
            imported = sources.imported_words(data) & modules
            if imported:
                sifted.importers[path] = imported
    return sifted


def module_names(paths: Sequence[str]) -> frozenset[bytes]:
    """Returns every name by which a file's module or package may be imported.

    >>> sorted(module_names(["a/b/__init__.py", "a/b/c.py"]))
    [b'__init__', b'b', b'c']
    """
    folders, files = set(), set()
    for path in paths:
        folder, _, name = path.rpartition(os.sep)
        folders.add(folder)
        files.add(name.removesuffix(".py"))
    files.update(os.path.basename(os.path.normpath(folder)) for folder in folders)
    return frozenset(map(os.fsencode, files))


def users(
    wrappers: Iterable[tuple[str, str]], importers: Mapping[str, set[bytes]]
) -> dict[str, Load]:
    """Returns the files that import a wrapper's module and name the wrapper."""
    by_module: dict[bytes, list[bytes]] = {}
    for name, stem in wrappers:
        by_module.setdefault(os.fsencode(stem), []).append(os.fsencode(name))
    found = {}
    for path, imported in importers.items():
        modules = imported & by_module.keys()
        data = sources.read_code(path) if modules else b""
        if not isinstance(data, Unreadable) and any(
            name in data for module in modules for name in by_module[module]
        ):
            found[path] = Load.of(path, data)
    return found
