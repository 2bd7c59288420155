"""The uses of pmap in a folder, found statically: what should be verified."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pmapx._src.analysis.known_names import is_followed
from pmapx._src.analysis.project import Project
from pmapx._src.analysis.sites import find_sites
from pmapx._src.source import files
from pmapx._src.source.discovery import Unreadable, files_below

_REMOVED = ("jax.device_put_replicated", "jax.device_put_sharded")


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """A use of pmap: its file relative to the folder, its lines, and the mapped function.

    ``cell`` is the cell of a notebook and the line in it; lines are those of all cells together.
    """

    path: str
    line: int
    first: int
    last: int
    kind: str
    function: str
    cell: tuple[int, int] | None = None

    @property
    def is_passed_on(self) -> bool:
        """Whether pmap is stored or passed here, and applied elsewhere."""
        return self.kind in ("partial", "value")

    def covers(self, path: str, line: int) -> bool:
        return self.path == path and self.first <= line <= self.last


def uses_below(
    root: Path, exclude: Sequence[str] = (), changed: Mapping[Path, bytes] | None = None
) -> tuple[list[Use], bool]:
    """Returns the uses below a folder, and whether functions that JAX removed are used there.

    ``changed`` has the new contents of files, by their real paths.
    """
    given = [path for path in files_below([str(root)], exclude=exclude) if isinstance(path, str)]
    project = Project(given)
    uses, needs_removed = [], False
    for path in given:
        if path.endswith(".pyi"):
            continue
        data = (changed or {}).get(Path(os.path.realpath(path))) or files.read_bytes(path)
        if isinstance(data, Unreadable) or not is_followed(data):
            continue
        module = project.module(path, data=data)
        if module is None:
            continue
        references = module.facts.references.values()
        needs_removed |= any(reference.name in _REMOVED for reference in references)
        for site in find_sites(module):
            shown = site.function.strip().partition("\n")[0]
            uses.append(
                Use(
                    os.path.relpath(path, root),
                    site.name.line,
                    site.place.line,
                    site.place.end_line,
                    site.kind,
                    shown if len(shown) < 60 else shown[:57] + "...",
                    module.source.cell_of(site.name.line),
                )
            )
    return uses, needs_removed
