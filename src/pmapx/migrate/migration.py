"""From paths to rewritten files: what ``pmapx migrate`` does between its options and its output."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Sequence

from pmapx.migrate import nestings, sources
from pmapx.migrate.discovery import Unreadable, files_below
from pmapx.migrate.project import Project
from pmapx.migrate.rewrite import Outcome, Rewriting, rewrite

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Migration:
    """All files with a use of pmap, what became of each use, and files that were not read."""

    files: tuple[Rewriting, ...]
    unreadable: tuple[Unreadable, ...]
    read: int

    @property
    def changed(self) -> tuple[Rewriting, ...]:
        """The files that have something to write."""
        return tuple(file for file in self.files if file.is_changed)

    @property
    def left(self) -> tuple[Outcome, ...]:
        """The places that stay as they are, with reasons."""
        return tuple(each for file in self.files for each in file.outcomes if each.reason)


def migrate(
    paths: Sequence[str],
    *,
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
) -> Migration:
    """Returns every file below the paths as it would be; nothing is imported, run or written."""
    unreadable: list[Unreadable] = []
    given: list[str] = []
    for item in files_below(paths, exclude=exclude):
        unreadable.append(item) if isinstance(item, Unreadable) else given.append(item)
    project = Project(given)
    texts: dict[str, bytes] = {}
    in_processes = False
    for number, path in enumerate(given):
        data = sources.read_bytes(path)
        if isinstance(data, Unreadable):
            unreadable.append(data)
            continue
        in_processes = in_processes or sources.is_of_processes(data)
        if sources.mentions(data) and sources.has_uses(data):
            texts[path] = data
            project.module(path, data=data)
        if progress is not None:
            progress(number, len(given))
    unreadable += [Unreadable(path, why) for path, why in project.unreadable.items()]
    modules = [(path, module) for path in texts if (module := project.module(path)) is not None]
    nested = nestings.nestings(module for _, module in modules)
    files = [
        rewrite(module, texts[path], nested=nested, in_processes=in_processes)
        for path, module in modules
        if not path.endswith(".pyi")
    ]
    return Migration(tuple(file for file in files if file.outcomes), tuple(unreadable), len(given))


def diff(file: Rewriting) -> str:
    """Returns a file's change as ``diff -u`` and ``git apply`` have it."""
    before, after = (_decoded(data) for data in (file.before, file.after))
    lines = []
    path = os.path.normpath(file.path).lstrip(os.sep)
    for line in difflib.unified_diff(before, after, f"a/{path}", f"b/{path}"):
        has_end = line.endswith("\n")
        lines.append(line if has_end else line + "\n\\ No newline at end of file\n")
    return "".join(lines)


def _decoded(data: bytes) -> list[str]:
    # Only \n ends a line, as for diff; splitlines would cut at more.
    text = data.decode("utf-8", "backslashreplace")
    return [line + "\n" for line in text.split("\n")[:-1]] + [
        last for last in text.split("\n")[-1:] if last
    ]
