"""Where something stands in a file, and how sure a finding there is."""

from __future__ import annotations

import dataclasses
import enum


class Confidence(enum.IntEnum):
    """How sure a finding is: ``high`` when all that it rests on was seen."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3

    def __str__(self) -> str:
        """Returns the name as users write it."""
        return self.name.lower()


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A stretch of a file: lines from 1, columns in characters from 0."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
