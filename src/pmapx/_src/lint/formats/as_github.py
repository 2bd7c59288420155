"""For GitHub's checks: one workflow command per finding."""

from pmapx._src.lint.check import Report
from pmapx._src.lint.finding import Finding
from pmapx._src.source.location import Confidence


def render(report: Report) -> str:
    """Returns the commands, which become annotations in a pull request."""
    return "\n".join(_command(finding) for finding in report.findings)


def _command(finding: Finding) -> str:
    place = finding.place
    kind = "notice" if finding.confidence == Confidence.LOW else "warning"
    message = f"{finding.code} {finding.message}"
    if finding.hint:
        message += f"\n{finding.hint}"
    where = [f"file={_property(place.path)}"]
    if finding.cell is None:
        where += [f"line={place.line}", f"endLine={place.end_line}", f"col={place.column + 1}"]
        if place.line == place.end_line:
            where.append(f"endColumn={place.end_column + 1}")
    else:
        message = f"cell {finding.cell[0]}, line {finding.cell[1]}: {message}"
    where.append(f"title={_property(finding.code)}")
    return f"::{kind} {','.join(where)}::{_data(message)}"


def annotation(kind: str, path: str | None, line: str, title: str, message: str) -> str:
    """Returns a command for a line of a file, or for none.

    >>> annotation("error", "train.py", "9", "PMX601", "100 % copies")
    '::error file=train.py,line=9,title=PMX601::100 %25 copies'
    """
    where = [] if path is None else [f"file={_property(path)}", f"line={line}"]
    return f"::{kind} {','.join([*where, f'title={_property(title)}'])}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
