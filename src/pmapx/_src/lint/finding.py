"""A finding, and the fix that it may carry."""

import dataclasses

from pmapx._src.source.location import Confidence, Place
from pmapx._src.source.rewriting.edits import Edit

# A release of JAX, as (0, 10) or (0, 8, 2).
Release = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Fix:
    """The edits that do what a finding asks for; a safe fix keeps the program's behavior."""

    edits: tuple[Edit, ...]
    is_safe: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``hint`` is what to do, where a rule knows it."""

    code: str
    message: str
    place: Place
    confidence: Confidence = Confidence.HIGH
    hint: str = ""
    # Where the value comes from that the finding is about.
    because: Place | None = None
    fix: Fix | None = None
    # The release of JAX that removed, changed or deprecated it; None if JAX 0.8 did already.
    since: Release | None = None
    # What is deprecated still works: it is reported only for a target release.
    is_deprecation: bool = False
    # The text of the place's first line, and where that is in a notebook.
    line_text: str = ""
    cell: tuple[int, int] | None = None

    @property
    def rank(self) -> tuple[int, str, int, str]:
        """Orders findings with the same code and place: the most certain first."""
        origin = (self.because.path, self.because.line) if self.because else ("", 0)
        return (-self.confidence, *origin, self.message)

    @property
    def shown_line(self) -> int:
        """The line as the user counts it: within the cell in a notebook."""
        return self.cell[1] if self.cell is not None else self.place.line

    @property
    def in_cell(self) -> str:
        """The cell of a notebook and the line in it, in front of a message; empty elsewhere."""
        return f"cell {self.cell[0]}, line {self.cell[1]}: " if self.cell is not None else ""

    @property
    def location(self) -> str:
        """Path, line and column from 1, as editors take them."""
        where = f"{self.place.path}:"
        if self.cell is not None:
            where += f"cell {self.cell[0]}:"
        return f"{where}{self.shown_line}:{self.place.column + 1}"
