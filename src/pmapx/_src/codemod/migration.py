"""From paths to rewritten files: what ``pmapx migrate`` does between its options and its output."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

from pmapx._src.analysis.known_names import is_followed
from pmapx._src.analysis.project import Project
from pmapx._src.codemod import to_pmapx
from pmapx._src.codemod.current_names import with_current_names
from pmapx._src.codemod.decide import nested_pmaps
from pmapx._src.codemod.decide.process_model import Surroundings
from pmapx._src.codemod.evidence.evidence import Evidence
from pmapx._src.codemod.replicated import style as replicated
from pmapx._src.codemod.write.rewrite import Outcome, Rewriting, rewrite
from pmapx._src.source import files as sources
from pmapx._src.source import gc_paused
from pmapx._src.source.discovery import Unreadable, files_below
from pmapx._src.source.rewriting.edits import Origins, applied

# Files without a use of pmap that the replicated style reads, on each side: more take too long.
MOST_OTHERS = 40
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Migration:
    """All files with a use of pmap, what became of each use, and files that were not read."""

    files: tuple[Rewriting, ...]
    unreadable: tuple[Unreadable, ...]
    read: int
    # In the replicated style: what is replicated now, and what stays stacked.
    gains: tuple[replicated.Gain, ...] = ()
    stays: tuple[replicated.Stay, ...] = ()
    # How many names that JAX removed are replaced.
    renamed: int = 0

    @property
    def changed(self) -> tuple[Rewriting, ...]:
        return tuple(file for file in self.files if file.is_changed)

    @property
    def left(self) -> tuple[Outcome, ...]:
        return tuple(each for file in self.files for each in file.outcomes if each.reason)


def migrate(
    paths: Sequence[str],
    *,
    exclude: Sequence[str] = (),
    to: str = "shard_map",
    style: str = "stacked",
    evidence: Evidence | None = None,
    named: Sequence[str] = (),
    progress: Progress | None = None,
) -> Migration:
    r"""Returns every file below the paths as it would be; nothing is imported, run or written.

    Examples:
      >>> import pathlib, tempfile, pmapx
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "train.py").write_text("import jax\nstep = jax.pmap(lambda x: x + 1)\n")
      >>> [file] = pmapx.migrate([str(folder)]).files
      >>> "shard_map" in file.after.decode()
      True

    Args:
      paths: files and folders.
      exclude: patterns of files and folders to leave out.
      to: ``shard_map``, plain JAX, or ``pmapx``, the same code with pmapx's functions.
      style: ``stacked`` keeps the leading device axis; ``replicated`` drops it where all are equal.
      evidence: for the replicated style, what a run of the program showed.
      named: for the replicated style, what the user calls replicated, as ``function:argument``.
      progress: called with the number of files read, and of all.

    Raises:
      NamingError: if a name in ``named`` leads to nothing.
    """
    with gc_paused.left_alone():
        program = Program.read(paths, exclude, progress)
        if style != "replicated":
            return _renamed(program, program.migration(program.rewritten(to)))
        restyled = program.restyled(evidence or Evidence(), named)
        files = program.rewritten_after(restyled, to)
        return _renamed(program, program.migration(files, restyled.gains, restyled.stays))


def _renamed(program: Program, done: Migration) -> Migration:
    """Replaces the names that JAX removed in what was rewritten and in all other files."""
    files, count = with_current_names(program.paths, done.files)
    return dataclasses.replace(done, files=tuple(files), renamed=count)


class Program:
    """Files that are read together, and what becomes of each."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.project = Project(paths)
        self.around = Surroundings()
        self._paths = paths
        self._texts: dict[str, bytes] = {}
        self._unreadable: list[Unreadable] = []

    @property
    def paths(self) -> Sequence[str]:
        return self._paths

    @classmethod
    def read(
        cls, paths: Sequence[str], exclude: Sequence[str], progress: Progress | None
    ) -> Program:
        """Returns the program below the paths, with the files that may have something to change."""
        found = list(files_below(paths, exclude=exclude))
        given = [item for item in found if not isinstance(item, Unreadable)]
        program = cls(given)
        program._unreadable += [item for item in found if isinstance(item, Unreadable)]
        for number, path in enumerate(given):
            data = sources.read_bytes(path)
            if isinstance(data, Unreadable):
                program._unreadable.append(data)
            else:
                program.add(path, data)
            if progress is not None:
                progress(number, len(given))
        return program

    def add(self, path: str, data: bytes) -> None:
        """Reads a file if it may have something to change."""
        self.around |= Surroundings.of(data)
        # A file may have pmap from another of the project, without a word of JAX in it.
        is_telling = b"jax" in data or b"pmap" in data
        if (is_followed(data) and is_telling) or b"common_utils" in data:
            self._texts[path] = data
            self.project.module(path, data=data)

    def rewritten(self, to: str) -> list[Rewriting]:
        """Returns each file as it would be."""
        modules = [
            (path, module)
            for path in self._texts
            if (module := self.project.module(path)) is not None and not path.endswith(".pyi")
        ]
        if to == "pmapx":
            return [to_pmapx.rewrite(module, self._texts[path]) for path, module in modules]
        nested = nested_pmaps.nestings(module for _, module in modules)
        return [
            rewrite(module, self._texts[path], nested=nested, around=self.around)
            for path, module in modules
        ]

    def migration(
        self,
        files: Sequence[Rewriting],
        gains: tuple[replicated.Gain, ...] = (),
        stays: tuple[replicated.Stay, ...] = (),
    ) -> Migration:
        """Returns what becomes of the files that have a use of pmap or a change."""
        kept = tuple(file for file in files if file.outcomes or file.is_changed)
        broken = [Unreadable(path, why) for path, why in self.project.unreadable.items()]
        unreadable = (*self._unreadable, *broken)
        return Migration(kept, unreadable, len(self._paths), gains, stays)

    def restyled(self, evidence: Evidence, named: Sequence[str]) -> replicated.Restyled:
        """Returns what becomes of the state in the replicated style."""
        left = {
            outcome.place: f"it is left as it is: {outcome.reason}"
            for file in self.rewritten("shard_map")
            for outcome in file.outcomes
            if outcome.reason
        }
        # State goes through files that do not mention pmap, too.
        project = Project(self._paths, others=MOST_OTHERS, has_definitions=True)
        for path, data in {**self._texts, **self._importers()}.items():
            project.module(path, data=data)
        # The texts of a notebook's cells are not one file that could be edited.
        modules = [
            module
            for module in project.modules.values()
            if module is not None and not module.source.cells
        ]
        return replicated.restyle(modules, evidence, named, left)

    def _importers(self) -> dict[str, bytes]:
        """Returns the files that import one with a use of pmap."""
        stems = {_stem(path) for path in self._texts}
        found: dict[str, bytes] = {}
        for path in self._paths:
            data = sources.read_bytes(path) if path not in self._texts else None
            is_python = isinstance(data, bytes) and path.endswith(".py")
            if is_python and sources.imported_words(data) & stems:  # type: ignore[arg-type]
                found[path] = data  # type: ignore[assignment]
            if len(found) == MOST_OTHERS:
                break
        return found

    def rewritten_after(self, restyled: replicated.Restyled, to: str) -> list[Rewriting]:
        """Returns each file rewritten after it was restyled, with places of the file as it was."""
        changed = Program(self._paths)
        after: dict[str, bytes] = {}
        for path in self._paths:
            edits = restyled.edits.get(os.path.normpath(path), ())
            data = self._texts.get(path) or (sources.read_bytes(path) if edits else None)
            if isinstance(data, bytes):
                after[path] = applied(data, edits)
        changed.project.texts = {os.path.normpath(path): data for path, data in after.items()}
        for path in self._texts:
            changed.add(path, after[path])
        changed.around = self.around
        files = []
        for file in changed.rewritten(to):
            data = self._texts[file.path]
            edits = restyled.edits.get(os.path.normpath(file.path), ())
            if edits:
                origins = Origins(data, edits)
                outcomes = tuple(
                    dataclasses.replace(outcome, place=origins.place(outcome.place))
                    for outcome in file.outcomes
                )
                file = dataclasses.replace(file, before=data, outcomes=outcomes)
            files.append(file)
        for path in after:
            other = sources.read_bytes(path) if path not in self._texts else None
            if isinstance(other, bytes):
                files.append(Rewriting(path, other, after[path], ()))
        return sorted(files, key=lambda file: self._paths.index(file.path))


def _stem(path: str) -> bytes:
    """Returns the word by which a file is imported."""
    folder, name = os.path.split(path)
    word = os.path.basename(folder) if name == "__init__.py" else name.removesuffix(".py")
    return word.encode()
