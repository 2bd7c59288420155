"""For programs: one JSON object."""

import json
from typing import Any

from pmapx._src.lint.check import Report
from pmapx._src.lint.finding import Finding
from pmapx._src.source.location import Place

VERSION = 1


def render(report: Report) -> str:
    """Returns the report; lines and columns count from 1, ends are exclusive."""
    content = {
        "version": VERSION,
        "files": report.files,
        "files_with_uses": report.files_with_uses,
        "baseline": {"known": report.known, "gone": report.gone},
        "findings": [_finding(finding) for finding in report.findings],
    }
    return json.dumps(content, indent=2)


def _finding(finding: Finding) -> dict[str, Any]:
    place = finding.place
    shift = finding.shown_line - place.line
    return {
        "code": finding.code,
        "message": finding.message,
        "hint": finding.hint,
        "fix": None if finding.fix is None else "safe" if finding.fix.is_safe else "unsafe",
        "since": ".".join(map(str, finding.since)) if finding.since else None,
        "confidence": str(finding.confidence),
        "because": _origin(finding.because),
        "path": place.path,
        "cell": finding.cell[0] if finding.cell is not None else None,
        "line": place.line + shift,
        "column": place.column + 1,
        "end_line": place.end_line + shift,
        "end_column": place.end_column + 1,
    }


def _origin(place: Place | None) -> dict[str, Any] | None:
    return {"path": place.path, "line": place.line} if place is not None else None
