"""For code scanning: SARIF 2.1.0."""

import json
import os
import urllib.parse
from typing import Any

from pmapx._src.lint.check import Report
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import all_rules
from pmapx._src.source.location import Confidence
from pmapx._version import __version__

_LEVELS = {Confidence.HIGH: "warning", Confidence.MEDIUM: "warning", Confidence.LOW: "note"}


def render(report: Report) -> str:
    """Returns the report with the pages of the rules that it names."""
    codes = sorted({finding.code for finding in report.findings})
    run = {
        "tool": {
            "driver": {
                "name": "pmapx",
                "version": __version__,
                "rules": [_rule(code) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, codes) for finding in report.findings],
    }
    content = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(content, indent=2)


def _rule(code: str) -> dict[str, Any]:
    rule = all_rules()[code]
    return {
        "id": code,
        "name": rule.__name__,
        "shortDescription": {"text": rule.summary()},
        "help": {"text": rule.page(), "markdown": rule.page().replace("``", "`")},
    }


def _result(finding: Finding, codes: list[str]) -> dict[str, Any]:
    place = finding.place
    hint = f" ({finding.hint})" if finding.hint else ""
    # A notebook is JSON: the lines of its cells are not lines of the file.
    region = (
        {"startLine": 1}
        if finding.cell is not None
        else {
            "startLine": place.line,
            "startColumn": place.column + 1,
            "endLine": place.end_line,
            "endColumn": place.end_column + 1,
        }
    )
    related = []
    if finding.because is not None and finding.cell is None:
        related.append(
            {
                "message": {"text": "it comes from here"},
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(finding.because.path)},
                    "region": {"startLine": finding.because.line},
                },
            }
        )
    return {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _LEVELS[finding.confidence],
        "message": {"text": f"{finding.in_cell}{finding.message}{hint}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(place.path)},
                    "region": region,
                }
            }
        ],
        "relatedLocations": related,
        "properties": {"confidence": str(finding.confidence)},
    }


def _uri(path: str) -> str:
    relative = os.path.relpath(path) if os.path.isabs(path) else os.path.normpath(path)
    outside = relative.startswith("..") and os.path.isabs(path)
    shown = (path if outside else relative).replace(os.sep, "/")
    quoted = urllib.parse.quote(shown.encode("utf-8", "surrogateescape"))
    return f"file://{quoted}" if outside else quoted
