"""Which file a module's name leads to, among the files that were given."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterable

from pmapx._src.analysis import known_names as names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.relevance import Relevance
from pmapx._src.analysis.values import UNKNOWN, Exported, Function, Mesh, Named, Place, Value, value
from pmapx._src.source import discovery, files
from pmapx._src.source.discovery import Unreadable
from pmapx._src.source.files import Source

# Files without a use of pmap that are read for those that have one: more take too long.
MOST_OTHERS = 40


class Project:
    """All files of a run; a module is read when something asks for a name in it."""

    def __init__(
        self,
        paths: Iterable[str],
        *,
        is_partial: bool = False,
        others: int = 0,
        has_definitions: bool = False,
        relevant_names: frozenset[str] = frozenset(),
    ) -> None:
        """Knows the files; reads none. Of an ``is_partial`` one, the rules alone ask for facts.

        So many ``others`` are read too that have no word of JAX in them, when a file imports them.
        With ``has_definitions`` every function is read, and the bindings that reach each name.
        A function that nothing calls is read only if it leads to one of the ``relevant_names``.
        """
        self.is_partial = is_partial
        self.has_definitions = has_definitions
        self.relevance = Relevance(self, relevant_names)
        self.pmaps = self.relevance.to_names(names.PMAP | names.OTHER_PMAPS)
        self.others_left = others
        # Files that are not read from the disk, by their path: they will be other than there.
        self.texts: dict[str, bytes] = {}
        self.paths = {os.path.normpath(path): path for path in paths}
        self.modules: dict[str, Module | None] = {}
        self._passed_over: set[str] = set()
        self.unreadable: dict[str, str] = {}
        self.jitted: set[ast.AST] = set()
        self.mapped: dict[ast.AST, Place] = {}
        # How many functions were seen to be jitted or mapped after they had been read.
        self.marked_late = 0
        # Sites of pmaps other than jax.pmap.
        self.other_pmaps: set[Place] = set()
        self.meshes_mapped: dict[Mesh, Place] = {}
        # Statements that may still be read; beyond that, calls are no longer followed.
        self.statements_left = 0
        # Whether calls are followed in the module that is being read.
        self.is_following = False
        # How often each function was read for that module.
        self.readings: dict[ast.AST, int] = {}
        # The place of the partial that is being applied.
        self.through: Place | None = None
        self._module_paths: dict[tuple[str, str, int], str | None] = {}
        self._imports: dict[tuple[str, str], Value] = {}
        self._exports: dict[tuple[str, str], Value] = {}
        self._suffixes: dict[str, list[str]] = {}
        self._parsed: dict[str, Source | Unreadable] = {}

    def anew(self) -> Project:
        """Returns a project of the same files that has read none of them.

        What no reading changes is shared: where files are, and their trees.
        """
        fresh = Project((), is_partial=self.is_partial)
        fresh.relevance = self.relevance.for_another(fresh)
        fresh.pmaps = self.pmaps.for_another(fresh)
        fresh.paths = self.paths
        fresh._module_paths = self._module_paths
        fresh._imports = self._imports
        fresh._suffixes = self._suffixes
        fresh._parsed = self._parsed
        fresh.__dict__.update(_words=self._words, _has_jax=self._has_jax)
        return fresh

    @functools.cached_property
    def with_definitions(self) -> Project:
        """The same files and trees, read again with the bindings of all names.

        For questions about few values of a project that was read without them.
        """
        found = Project(self.paths.values(), others=MOST_OTHERS, has_definitions=True)
        found.texts = self.texts
        read = {path: module.source for path, module in self.modules.items() if module is not None}
        found._parsed.update(read)
        for path, source in read.items():
            found.module(path, data=source.text.encode())
        return found

    def module(
        self, path: str, *, data: bytes | None = None, is_followed: bool = True
    ) -> Module | None:
        """Returns the module of a file, read; None if it cannot be or has nothing to tell.

        A file whose bytes are given is read; another only if it names something to follow.
        Unless followed, calls in the file are not.
        """
        path = os.path.normpath(path)
        if path in self.modules:
            return self.modules[path]
        if data is None and path in self._passed_over:
            return None
        self.modules[path] = None
        shown = self.paths.get(path, path)
        must_report = data is not None
        has_bodies = True
        if data is None:
            is_given = path in self.texts
            read = self.texts[path] if is_given else files.read_bytes(shown)
            if isinstance(read, Unreadable):
                return None
            data = read
            # A package's __init__ may only pass names on, with no word that we look for.
            is_telling = is_given or names.may_pass_on(data)
            has_bodies = is_telling or self.others_left > 0
            if not has_bodies and os.path.basename(path) != "__init__.py":
                # The file itself may still be checked.
                del self.modules[path]
                self._passed_over.add(path)
                return None
            self.others_left -= has_bodies and not is_telling
        source = self._parse(path, data)
        if isinstance(source, Unreadable):
            if must_report or names.may_pass_on(data):
                self.unreadable[shown] = source.reason
            return None
        module = Module(source, self, is_followed=is_followed, has_bodies=has_bodies)
        self.modules[path] = module
        try:
            module.read()
        except RecursionError:
            self.modules[path] = None
            self.unreadable[shown] = "nested too deeply to check"
            return None
        return module

    def mark(self, function: Function, site: Place | None) -> None:
        """Notes that a function is mapped at a site, or jitted if there is none."""
        node = function.node
        if node not in (self.jitted if site is None else self.mapped):
            # What is traced in a jitted or mapped function matters only if it is pmapped.
            self.marked_late += node in function.module.visited and self.pmaps.of(function)
        if site is None:
            self.jitted.add(node)
        else:
            self.mapped[node] = site

    def _parse(self, path: str, data: bytes) -> Source | Unreadable:
        """Returns a file's tree; trees of files that will not change are kept."""
        shown = self.paths.get(path, path)
        if path in self._parsed:
            return self._parsed[path]
        found = files.parse(shown, data)
        if self.is_partial:
            self._parsed[path] = found
        return found

    @functools.cached_property
    def compares_pmap(self) -> bool:
        """Whether any module that was read compares something with pmap."""
        return any(
            isinstance(module.parent(reference.node), ast.Compare)
            for module in self.modules.values()
            if module is not None
            for reference in module.facts.references.values()
            if reference.name in names.PMAP and reference.by != "import"
        )

    def wrappers(self) -> set[tuple[str, str]]:
        """Returns the names by which other files may reach a pmap, and each one's module."""
        found: set[tuple[str, str]] = set()
        for path, module in list(self.modules.items()):
            if module is not None:
                stem = os.path.basename(path).removesuffix(".py")
                if stem == "__init__":
                    stem = os.path.basename(os.path.dirname(path))
                found |= {(name, stem) for name in module.ways_to_pmap()}
        return found

    def exported(self, path: str, name: str) -> Value:
        """Returns what a name holds in a module of the project, or in one outside it."""
        if (path, name) in self._exports:
            return self._exports[path, name]
        if os.path.normpath(path) not in self.paths:
            return value(Named(f"{path}.{name}")) if path.partition(".")[0] == "jax" else UNKNOWN
        stem = os.path.normpath(path).removesuffix(".py").replace(os.sep, ".")
        for known in names.FUNCTIONS_BY_LEAF.get(name, ()):
            # Flax's own checkout, or a copy of it: the function is the one of that name.
            if f".{stem}".endswith("." + known.rpartition(".")[0]):
                return value(Named(known))
        module = self.module(path)
        held = module.exported(name) if module is not None else UNKNOWN
        # ``from flax import jax_utils`` in Flax's own __init__ adds nothing.
        held -= {Exported(path, name)}
        if not held:
            below = self._child(path, name)
            held = value(Exported(below, "")) if below is not None else UNKNOWN
        if module is None or module.is_read:
            self._exports[path, name] = held
        return held

    def imported(self, importer: str, name: str) -> Value:
        """Returns what ``import name as x`` binds."""
        key = (importer, name)
        if key not in self._imports:
            path = self.module_path(importer, name, 0)
            held = value(Exported(path, "")) if path is not None else _outside(name)
            self._imports[key] = held
        return self._imports[key]

    def imported_from(self, importer: str, module: str, level: int, name: str) -> Value:
        """Returns what ``from module import name`` binds."""
        path = self.module_path(importer, module, level)
        if path is not None:
            return value(Exported(path, name))
        if level:
            folder = self._folder_above(importer, level)
            below = self._file(os.path.join(folder, *module.split("."), name))
            return value(Exported(below, "")) if below is not None else UNKNOWN
        dotted = f"{module}.{name}"
        path = self.module_path(importer, dotted, 0)
        return value(Exported(path, "")) if path is not None else _outside(dotted)

    def module_path(self, importer: str, name: str, level: int) -> str | None:
        """Returns the file of a module as another names it, or None if it is not given."""
        if not level and self.is_outside(name):
            return None
        key = (os.path.dirname(importer), name, level)
        if key not in self._module_paths:
            self._module_paths[key] = self._find_module(importer, name, level)
        return self._module_paths[key]

    def is_outside(self, name: str) -> bool:
        """Returns whether a module is certainly not part of the project, such as JAX's."""
        package = name.partition(".")[0]
        return package not in self._words or (package == "jax" and self._has_jax)

    def _find_module(self, importer: str, name: str, level: int) -> str | None:
        if level:
            folder = self._folder_above(importer, level)
            return self._file(os.path.join(folder, *name.split(".")) if name else folder)
        beside = self._file(os.path.join(os.path.dirname(importer), *name.split(".")))
        if beside is not None and not _is_in_package(importer):
            return beside
        candidates = self._by_suffix().get(name, [])
        if "." not in name:
            # A bare name is a top-level module only where no package is around it.
            candidates = [path for path in candidates if not _is_in_package(path, name)]
            candidates = [path for path in candidates if _is_top(path, importer)]
        if not candidates:
            return None
        here = os.path.abspath(importer)
        return max(
            candidates, key=lambda path: len(os.path.commonpath([os.path.abspath(path), here]))
        )

    def _folder_above(self, importer: str, level: int) -> str:
        folder = os.path.dirname(importer)
        for _ in range(level - 1):
            folder = os.path.join(folder, "..") if folder in ("", ".") else os.path.dirname(folder)
        return folder

    def _child(self, path: str, name: str) -> str | None:
        if os.path.basename(path) != "__init__.py":
            return None
        return self._file(os.path.join(os.path.dirname(path), name))

    def _file(self, stem: str) -> str | None:
        for path in (stem + ".py", os.path.join(stem, "__init__.py")):
            path = os.path.normpath(path)
            if path in self.paths:
                return path
        return None

    @functools.cached_property
    def _has_jax(self) -> bool:
        """Whether JAX itself is checked: what its functions do is known, and not read there."""
        return any(discovery.is_part_of_jax(path) for path in self.paths)

    @functools.cached_property
    def _words(self) -> frozenset[str]:
        """Every folder and file name of the project, without endings."""
        folders, names = set[str](), set[str]()
        for path in self.paths:
            folder, _, name = path.rpartition(os.sep)
            folders.add(folder)
            names.add(name)
        names.update(part for folder in folders for part in folder.split(os.sep))
        return frozenset(name.removesuffix(".py") for name in names)

    def _by_suffix(self) -> dict[str, list[str]]:
        if not self._suffixes:
            for path in self.paths:
                parts = path.removesuffix(".py").split(os.sep)
                if parts[-1] == "__init__":
                    parts.pop()
                for start in range(len(parts)):
                    self._suffixes.setdefault(".".join(parts[start:]), []).append(path)
        return self._suffixes


@functools.cache
def _outside(name: str) -> Value:
    return value(Named(name))


def _is_in_package(path: str, top: str = "") -> bool:
    folder = os.path.dirname(path)
    if os.path.basename(path) == "__init__.py" and os.path.basename(folder) == top:
        folder = os.path.dirname(folder)
    return os.path.exists(os.path.join(folder, "__init__.py"))


def _is_top(path: str, importer: str) -> bool:
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.basename(path) == "__init__.py":
        folder = os.path.dirname(folder)
    return os.path.commonpath([folder, os.path.abspath(importer)]) == folder
