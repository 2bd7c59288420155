"""Where the maps and lines of rewritten files are in the files as the user has them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence

from pmapx._src.codemod.write.rewrite import Rewriting
from pmapx._src.source.location import Place
from pmapx._src.source.rewriting.edits import starts

_LINE = re.compile(r"([\w.-]+\.py):(\d+)")
_Block = tuple[int, int, int, int]


class OriginalLines:
    """From places in the new texts of files to places in the old ones."""

    def __init__(self, files: Sequence[Rewriting], maps: Sequence[Place]) -> None:
        """``maps`` are the places of all maps in the new texts."""
        self._files = {os.path.realpath(file.path): file for file in files}
        self._maps = maps
        self._blocks = {path: _blocks(file) for path, file in self._files.items()}

    def place(self, place: Place) -> Place:
        """Returns the use of pmap that became a map, or the line that its own was."""
        path = os.path.realpath(place.path)
        block = self._block(path, place.line)
        if block is None:
            return place
        start, end, new_start, new_end = block
        # Not those of device_put_replicated, which is not a map.
        maps_before = [o for o in self._files[path].outcomes if o.what.startswith("jax.pmap")]
        uses = [each.place for each in maps_before if start < each.place.line <= end]
        maps = [each for each in self._maps if os.path.realpath(each.path) == path]
        here = sorted((each for each in maps if new_start < each.line <= new_end), key=starts)
        if len(uses) == len(here):
            return uses[here.index(place)]
        if uses:
            return uses[0]
        line = _line(block, place.line)
        return Place(place.path, line, place.column, line, place.column)

    def text(self, text: str) -> str:
        """Returns a message with the old number of each line that it names."""
        return _LINE.sub(self._old, text)

    def _old(self, found: re.Match[str]) -> str:
        paths = [path for path in self._files if os.path.basename(path) == found[1]]
        block = self._block(paths[0], int(found[2])) if len(paths) == 1 else None
        return found[0] if block is None else f"{found[1]}:{_line(block, int(found[2]))}"

    def _block(self, path: str, line: int) -> _Block | None:
        blocks = self._blocks.get(path, [])
        return next((each for each in blocks if each[2] < line <= each[3]), None)


def _blocks(file: Rewriting) -> list[_Block]:
    before, after = (
        text.decode("utf-8", "replace").splitlines() for text in (file.before, file.after)
    )
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [block[1:] for block in matcher.get_opcodes()]


def _line(block: _Block, line: int) -> int:
    start, end, new_start, _ = block
    return min(start + line - new_start, max(end, start + 1))
