"""For GitHub's checks: one workflow command per finding."""

from collections.abc import Mapping

from pmapx._src.lint.check import Report
from pmapx._src.lint.finding import Finding
from pmapx._src.source.location import Confidence


def render(report: Report) -> str:
    """Returns the commands, which become annotations in a pull request."""
    return "\n".join(_command(finding) for finding in report.findings)


def _command(finding: Finding) -> str:
    place = finding.place
    kind = "notice" if finding.confidence == Confidence.LOW else "warning"
    message = f"{finding.in_cell}{finding.code} {finding.message}"
    if finding.hint:
        message += f"\n{finding.hint}"
    where: dict[str, object] = {"file": place.path}
    if finding.cell is None:
        where |= {"line": place.line, "endLine": place.end_line, "col": place.column + 1}
        if place.line == place.end_line:
            where["endColumn"] = place.end_column + 1
    return annotation(kind, where, finding.code, message)


def annotation(kind: str, where: Mapping[str, object], title: str, message: str) -> str:
    """Returns a command for a place, by its file and lines.

    >>> annotation("error", {"file": "train.py", "line": 9}, "PMX601", "100 % copies")
    '::error file=train.py,line=9,title=PMX601::100 %25 copies'
    """
    given = {**where, "title": title}.items()
    properties = ",".join(f"{name}={_property(str(each))}" for name, each in given)
    return f"::{kind} {properties}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
