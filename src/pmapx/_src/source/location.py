"""Where something is in a file, and the confidence of a finding there."""

from __future__ import annotations

import dataclasses
import enum
import os
import re

# As Python counts lines; str.splitlines would also split at form feeds and other separators.
LINE_END = re.compile("\r\n|\r|\n")


class Confidence(enum.IntEnum):
    """How sure a finding is: ``high`` when all that it rests on was seen."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3

    def __str__(self) -> str:
        """Returns the name as users write it."""
        return self.name.lower()


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Place:
    """A span of a file: lines from 1, columns in characters from 0."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        """Returns path, line and column from 1, as editors take them."""
        return f"{self.path}:{self.line}:{self.column + 1}"

    def is_inside(self, around: Place) -> bool:
        """Returns whether another place of the same file contains it."""
        return (
            os.path.normpath(self.path) == os.path.normpath(around.path)
            and (around.line, around.column) <= (self.line, self.column)
            and (self.end_line, self.end_column) <= (around.end_line, around.end_column)
        )
