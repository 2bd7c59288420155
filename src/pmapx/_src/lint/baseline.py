"""A baseline: the findings that a codebase starts with, which are not reported again.

A finding is known by its file, its code and the text of its line, so that it stays known when lines
move. Two equal lines count twice. Paths are relative to the folder of the baseline.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
from collections.abc import Collection, Iterable
from typing import Any

from pmapx._src.lint.check import Report
from pmapx._src.lint.finding import Finding
from pmapx._src.source.command_error import CommandError
from pmapx._src.source.rewriting import atomic_write

VERSION = 1
# The file, the code and the text of the line.
Key = tuple[str, str, str]


class Baseline:
    """The findings of a baseline, by their keys."""

    def __init__(self, path: str, counts: collections.Counter[Key] | None = None) -> None:
        self.path = path
        self._folder = os.path.dirname(os.path.realpath(path))
        self._counts = counts or collections.Counter()

    @classmethod
    def read(cls, path: str) -> Baseline:
        """Reads a baseline; raises ``CommandError`` if there is none."""
        try:
            with open(path, encoding="utf-8") as opened:
                content = json.load(opened)
        except FileNotFoundError:
            hint = "write it with --write-baseline"
            raise CommandError(f"no baseline {path!r}; {hint}") from None
        except (OSError, ValueError) as error:
            raise CommandError(f"{path}: {' '.join(str(error).split())}") from None
        try:
            return cls(path, _counted(content))
        except (KeyError, TypeError, AttributeError):
            raise CommandError(f"{path}: not a baseline of pmapx") from None

    def has(self, finding: Finding) -> bool:
        """Returns whether a finding like this one is in the baseline."""
        return self._key(finding) in self._counts

    def without_known(self, report: Report, codes: Collection[str]) -> Report:
        """Returns the report without what the baseline has, and counts what is gone since.

        ``codes`` are those that were looked for.
        """
        left = self._counts.copy()
        new = []
        for finding in report.findings:
            key = self._key(finding)
            if left[key] > 0:
                left[key] -= 1
            else:
                new.append(finding)
        checked = {self._relative(path) for path in report.paths}
        gone = sum(n for key, n in left.items() if key[0] in checked and key[1] in codes)
        known = len(report.findings) - len(new)
        return dataclasses.replace(report, findings=new, known=known, gone=gone)

    def write(self, report: Report, codes: Collection[str]) -> None:
        """Replaces what the baseline has of the files and codes of a report, and of deleted files.

        ``codes`` are those that were looked for.
        """
        checked = {self._relative(path) for path in report.paths}
        kept = {
            key: count
            for key, count in self._counts.items()
            if not (key[0] in checked and key[1] in codes)
            and os.path.exists(os.path.join(self._folder, key[0]))
        }
        counts = collections.Counter(map(self._key, report.findings)) + collections.Counter(kept)
        files: dict[str, list[dict[str, Any]]] = {}
        for (path, code, line), count in sorted(counts.items()):
            files.setdefault(path, []).append({"code": code, "line": line, "count": count})
        content = json.dumps({"version": VERSION, "files": files}, indent=1, ensure_ascii=False)
        atomic_write.write_output(self.path, content + "\n")

    def _key(self, finding: Finding) -> Key:
        return self._relative(finding.place.path), finding.code, finding.line_text.strip()

    def _relative(self, path: str) -> str:
        return os.path.relpath(os.path.realpath(path), self._folder).replace(os.sep, "/")


def _counted(content: Any) -> collections.Counter[Key]:
    if content["version"] != VERSION:
        raise KeyError("version")
    entries: Iterable[tuple[str, list[dict[str, Any]]]] = content["files"].items()
    return collections.Counter(
        {
            (path, str(entry["code"]), str(entry["line"])): int(entry["count"])
            for path, listed in entries
            for entry in listed
        }
    )
