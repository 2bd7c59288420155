"""For people: the place, the line with a caret under it, and what to do."""

import functools
import unicodedata
from collections import Counter

from pmapx._src.lint.check import Report
from pmapx._src.lint.finding import Finding
from pmapx._src.pages.formatting import counted
from pmapx._src.source.location import Confidence

_WIDEST = 160


def _styled(code: str, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if text else ""


_bold, _dim, _red, _green, _blue = (
    functools.partial(_styled, code) for code in ("1", "2", "1;31", "32", "36")
)


def render(report: Report) -> str:
    """Returns the report with terminal colors; the caller may strip them."""
    parts = [_finding(finding) for finding in report.findings]
    parts.append(_summary(report))
    return "\n\n".join(parts)


def printable(text: str) -> str:
    r"""Replaces what a terminal would act on: a file's text is data here.

    >>> print(printable("a\x1b[31mb"))
    a?[31mb
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() and unicodedata.category(character) != "Cf"
        else " " if character == "\t" else "?"
        for character in text
    )  # fmt: skip


def _finding(finding: Finding) -> str:
    doubt = "" if finding.confidence == Confidence.HIGH else f" [{finding.confidence}]"
    lines = [
        f"{_bold(printable(finding.location))}: {_red(finding.code)} "
        f"{printable(finding.message)}{_dim(doubt)}"
    ]
    if finding.line_text.strip():
        lines += _quoted(finding)
    if finding.hint:
        lines.append(f"  {_dim('=')} {_blue(printable(finding.hint))}")
    return "\n".join(lines)


def _quoted(finding: Finding) -> list[str]:
    place = finding.place
    last = place.end_column if place.end_line == place.line else len(finding.line_text)
    # A very long line is shortened around what is pointed at.
    start = max(0, place.column - 60) if len(finding.line_text) > _WIDEST else 0
    text = finding.line_text[start : start + _WIDEST]
    last = min(last, start + len(text))
    gutter = str(finding.shown_line)
    before = " " * _width(text[: place.column - start])
    caret = "^" * max(1, _width(text[place.column - start : last - start]))
    return [
        f"{_dim(gutter + ' |')} {printable(text)}",
        f"{' ' * len(gutter)} {_dim('|')} {before}{_red(caret)}",
    ]


def _width(text: str) -> int:
    """Columns on a terminal: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in printable(text)
    )


def _summary(report: Report) -> str:
    files = counted(report.files, "file")
    baseline = []
    if report.known:
        baseline.append(f"{report.known:,} more in the baseline.")
    if report.gone:
        gone = counted(report.gone, "finding")
        baseline.append(f"Gone from the baseline: {gone}; --write-baseline renews it.")
    if not report.files:
        step = "pass a folder or file with Python code, and look at exclude in pyproject.toml"
        return "\n".join(["No Python files or notebooks to check.", _dim(f"Next: {step}.")])
    if not report.findings:
        new = " new" * bool(report.known)
        step = "pmapx migrate rewrites what is in the baseline"
        if not report.known:
            step = "pmapx audit PROGRAM reports a program's communication and memory"
        found = _green(f"Nothing{new} found in {files}.")
        return "\n".join([found, *baseline, _dim(f"Next: {step}.")])
    counts = Counter(finding.code for finding in report.findings)
    places = len({finding.place.path for finding in report.findings})
    found = counted(len(report.findings), "finding")
    listed = ", ".join(f"{code} {number}x" for code, number in sorted(counts.items()))
    lines = [f"{_bold(found)} in {places} of {files}: {listed}"]
    safe = [f.fix.is_safe for f in report.findings if f.fix is not None]
    if safe:
        unsafe = f"{len(safe) - sum(safe):,} with --fix --unsafe-fixes" * (not all(safe))
        fixable = ", ".join(filter(None, [f"{sum(safe):,} with --fix" * any(safe), unsafe]))
        lines.append(f"Fixable: {fixable}.")
    lines += baseline
    steps = ["--fix applies the safe fixes"] if any(safe) else []
    if any(code.startswith("PMX50") for code in counts):
        steps.append("pmapx migrate shows the rewritten code")
    steps.append("pmapx explain CODE describes a finding")
    return "\n".join([*lines, _dim(f"Next: {'; '.join(steps)}.")])
