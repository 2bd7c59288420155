"""Which files can have findings, by a look at the bytes of every file, and shares of them.

Several processes can read shares independently. A share's findings do not depend on any other
share, and which files are in one depends on the files alone: a report is the same in however many
processes it was made.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from pmapx._src.source import files as sources
from pmapx._src.source.discovery import Unreadable

# Bytes of code that are read as one: more shares keep more processors busy.
SHARE = 50_000
# Files that use one another are separated only beyond this: what two shares use is read twice.
MOST_CONNECTED = 1_500_000
# Pictures in a notebook cost nothing.
NOTEBOOK = 40_000


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """What reading a file costs, in bytes of code, and the words on its lines with imports."""

    weight: int
    words: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, path: str, data: bytes) -> Load:
        """Returns what a file weighs."""
        size = min(len(data), NOTEBOOK) if path.endswith(".ipynb") else len(data)
        return cls(size, frozenset(sources.imported_words(data)))


def shares(files: Mapping[str, Load]) -> list[list[str]]:
    """Returns shares of files; those that import one another stay together where they can.

    >>> shares({"p/a.py": Load(SHARE, frozenset({b"b"})), "p/b.py": Load(SHARE)})
    [['p/a.py', 'p/b.py']]
    >>> shares({"p/a.py": Load(SHARE), "p/b.py": Load(SHARE)})
    [['p/a.py'], ['p/b.py']]
    """
    found: list[list[str]] = [[]]
    taken = 0
    for group in _connected({path: load.words for path, load in files.items()}):
        weights = [files[path].weight for path in group]
        parts = max(1, round(sum(weights) / MOST_CONNECTED))
        if parts > 1:
            found += [*_split(group, weights, parts), []]
            taken = 0
            continue
        if taken and taken + sum(weights) / 2 > SHARE:
            found.append([])
            taken = 0
        found[-1] += group
        taken += sum(weights)
    return [share for share in found if share]


def _split(group: list[str], weights: list[int], parts: int) -> list[list[str]]:
    """Splits a group into parts of about the same weight; neighbors stay together."""
    split: list[list[str]] = [[] for _ in range(parts)]
    before, total = 0, max(sum(weights), 1)
    for path, size in zip(group, weights, strict=True):
        split[min(before * parts // total, parts - 1)].append(path)
        before += size
    return split


def _connected(imports: Mapping[str, frozenset[bytes]]) -> Iterable[list[str]]:
    """Returns groups of files of which none imports a file of another, in the order of paths."""
    by_word: dict[bytes, list[str]] = {}
    above = os.path.commonpath([os.path.dirname(path) for path in imports]) if imports else ""
    for path in imports:
        for word in _words_for(os.path.relpath(path, above or os.curdir)):
            by_word.setdefault(word, []).append(path)
    group_of: dict[str, list[str]] = {path: [path] for path in imports}
    for path, words in imports.items():
        for word in words & by_word.keys():
            for other in by_word[word]:
                one, two = group_of[path], group_of[other]
                if one is not two:
                    small, large = sorted((one, two), key=len)
                    large += small
                    group_of.update(dict.fromkeys(small, large))
    groups = {id(group): sorted(group) for group in group_of.values()}
    return sorted(groups.values())


def _words_for(path: str) -> set[bytes]:
    """Returns the words by which an import may mean a file: its own name and its folders'."""
    parts = os.path.normpath(path).split(os.sep)
    return {part.removesuffix(".py").encode("utf-8", "surrogateescape") for part in parts}


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
