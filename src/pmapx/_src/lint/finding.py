"""A finding: what a rule says of a place."""

from __future__ import annotations

import dataclasses

from pmapx._src.source.location import Confidence, Place


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``hint`` says what to do, where a rule knows it for this place."""

    code: str
    message: str
    place: Place
    confidence: Confidence = Confidence.HIGH
    hint: str = ""
    # Where the value comes from that the finding is about.
    because: Place | None = None
    # The text of the place's first line, and where that is in a notebook.
    line_text: str = ""
    cell: tuple[int, int] | None = None

    @property
    def rank(self) -> tuple[int, str, int, str]:
        """Orders findings that say the same of one place: the surest first."""
        origin = (self.because.path, self.because.line) if self.because else ("", 0)
        return (-self.confidence, *origin, self.message)

    @property
    def shown_line(self) -> int:
        """The line as the user counts it: within the cell in a notebook."""
        return self.cell[1] if self.cell is not None else self.place.line

    @property
    def location(self) -> str:
        """Path, line and column from 1, as editors take them."""
        where = f"{self.place.path}:"
        if self.cell is not None:
            where += f"cell {self.cell[0]}:"
        return f"{where}{self.shown_line}:{self.place.column + 1}"
