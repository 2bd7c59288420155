"""Reading a share of the files with uses: from paths to findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pmapx._src.analysis import known_names
from pmapx._src.analysis.project import Project
from pmapx._src.lint import fixing, searched_names
from pmapx._src.lint.finding import Finding
from pmapx._src.source import files, gc_paused
from pmapx._src.source.discovery import Unreadable


@dataclasses.dataclass(slots=True)
class Reading:
    """What one process learned."""

    findings: list[Finding]
    unreadable: dict[str, str]
    # Names under which other files may use what these files wrap.
    wrappers: set[tuple[str, str]]

    def add(self, other: Reading) -> None:
        """Takes in what was learned of other files."""
        self.findings += other.findings
        self.unreadable |= other.unreadable
        self.wrappers |= other.wrappers


def read_anew(project: Project, is_followed: bool, todo: list[str]) -> Reading:
    """Reads files of a project as if no other share had been read."""
    return read(project.anew(), is_followed, todo)


def read_apart(given: Sequence[str], is_followed: bool, todo: list[str]) -> Reading:
    """What another process does: modules that its files use are read there too."""
    return read(project_of(given), is_followed, todo)


def project_of(given: Sequence[str]) -> Project:
    """Returns the project of some files, to read of each what rules can find something in."""
    return Project(given, is_partial=True, relevant_names=searched_names.relevant())


def read_text(name: str, data: bytes) -> Reading:
    """Reads the text of one file as if it were on disk."""
    project = project_of([name])
    project.texts[name] = data
    return read(project, False, [name])


@gc_paused.left_alone()
def read(project: Project, is_followed: bool, todo: list[str]) -> Reading:
    """Reads files of a project, and what they use of others that it has not read.

    Calls are followed in files that name something to follow, or else in all.
    """
    for path in todo:
        data = project.texts.get(path) or files.read_code(path)
        if isinstance(data, Unreadable):
            project.unreadable[path] = data.reason
        else:
            project.module(
                path, data=data, is_followed=is_followed or known_names.is_followed(data)
            )
    return Reading(_findings(project), project.unreadable, project.wrappers())


def _findings(project: Project) -> list[Finding]:
    """Runs every rule on every module that was read."""
    return [
        finding
        for module in project.modules.values()
        if module is not None and module.is_read
        for finding in fixing.findings(module)
    ]
