"""The module of ``--helpers``: what several files would have a copy of, once, for all to import.

It holds the functions that migrated files call, and a mesh that several files need::

    @functools.cache
    def mesh():
        return jax.make_mesh(...)

The mesh is made at its first use: importing the module does not initialize JAX's backend.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pmapx._src.analysis.definitions import bound_or_imported
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.analysis.values import Named
from pmapx._src.codemod.decide import axis_names
from pmapx._src.codemod.forms import host_local
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.write import import_paths
from pmapx._src.emitted import functions
from pmapx._src.emitted.functions import Manner
from pmapx._src.source import files
from pmapx._src.source.command_error import CommandError
from pmapx._src.source.discovery import Unreadable
from pmapx._src.source.files import Source
from pmapx._src.source.rewriting import added_imports
from pmapx._src.source.rewriting.edits import applied, between

AUTO = "axis_types=(jax.sharding.AxisType.Auto,)"
_DOCSTRING = '"""Meshes, and functions that map over their devices."""\n'


class HelpersError(CommandError):
    """The module of the helper functions cannot be written or imported; one line says why."""


def all_devices(axis: str, in_processes: bool) -> list[str]:
    """Returns the function that makes a mesh of all devices, and its arguments."""
    if in_processes:
        # The devices of a process are next to each other, as its shards are.
        devices = "sorted(jax.devices(), key=lambda device: device.process_index)"
        return ["jax.sharding.Mesh", devices, f"({axis},)", AUTO]
    return ["jax.make_mesh", "(jax.device_count(),)", f"({axis},)", AUTO]


@dataclasses.dataclass(frozen=True, slots=True)
class _Function:
    """A function of the module; one that is there already has no text."""

    text: str
    needs: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()


class SharedModule:
    """The module as it is, and what the files of a program import from it."""

    def __init__(self, path: str, root: str, *, has_meshes: bool = True) -> None:
        """Reads the module if it exists; ``root`` is the folder of the project.

        Raises:
          HelpersError: if the path cannot be that of a module of the project.
        """
        self.path, self.real = path, os.path.realpath(path)
        self._has_meshes = has_meshes
        self.data, self._source = _read(path, os.path.realpath(root))
        self.is_new = not os.path.exists(path)
        self._bound = {name: node for node in self._source.tree.body for name in _names_bound(node)}
        self._editor = Editor(self._source)
        self._functions: dict[str, _Function] = {}
        self._names: dict[tuple[str, Manner, str], str] = {}
        self._imported_as: dict[str, str] = {}
        # The files that need each mesh, and the names of those that several share.
        self._users: dict[tuple[str, bool], set[str]] = {}
        self._meshes: dict[tuple[str, bool], str] = {}
        # How many maps of each file convert their arrays, if a function is to do so for all.
        self._converted: dict[str, int] = {}
        self._is_converting = False
        self._converting = host_local.NAME

    def is_here(self, module: Module) -> bool:
        return os.path.realpath(module.path) == self.real

    def function(self, module: Module, name: str, manner: Manner) -> str:
        """Returns the name in the module of an emitted function that a file calls."""
        axis = axis_names.of_maps(module)
        for each in functions.with_needs([name], manner):
            key = (each, manner, axis)
            if key not in self._names:
                found = functions.find(each, manner)
                needs = {other: self._names[other, manner, axis] for other in found.needs}
                text = axis_names.with_name(functions.text(each, self._editor.step, manner), axis)
                new = _Function(text, tuple(needs.values()), found.imports)
                self._names[key] = self._placed(new, [each], needs)
        return self._names[name, manner, axis]

    def _placed(self, new: _Function, wanted: list[str], needs: Mapping[str, str]) -> str:
        """Returns the first free name for a function, or that of the same function."""
        first = wanted[0]
        for name in (*wanted, *(f"{first}{i}" for i in range(2, 1000))):
            text = _renamed(new.text, {**needs, first: name})
            if name in self._functions:
                known = self._functions[name].text or ast.unparse(self._bound[name])
            elif name in self._bound:
                known = ast.unparse(self._bound[name])
            else:
                self._functions[name] = dataclasses.replace(new, text=text)
                return name
            if _is_same(known, text):
                self._functions.setdefault(name, _Function(""))
                return name
        raise HelpersError(f"{self.path} has no free name for {first}")

    def mesh(self, module: Module, axis: str, in_processes: bool) -> str:
        """Returns the name of the function that makes a mesh, empty if a file makes its own."""
        key = (axis, in_processes)
        if not self._has_meshes or self.is_here(module) or not self._can_import(module):
            return ""
        self._users.setdefault(key, set()).add(module.path)
        return self._meshes.get(key, "")

    def share_conversions(self, module: Module, uses: Sequence[Use]) -> None:
        """Lets one function convert for the maps of a file whose arrays are all host-local."""
        uses = host_local.sharing(uses)
        if self.is_here(module) or self._can_import(module):
            self._converted[module.path] = len(uses)
            if any(map(host_local.needs_later, uses)):
                self._converting = host_local.LATER
            for use in uses:
                use.conversion = self._converting if self._is_converting else ""

    def count_users(self) -> None:
        """Begins to count the files that need a mesh."""
        self._users = {}

    def share(self) -> bool:
        """Names what several files need; returns whether there is something new."""
        known = len(self._meshes) + self._is_converting
        self._is_converting = sum(self._converted.values()) >= host_local.FEWEST
        for (axis, in_processes), users in self._users.items():
            if (axis, in_processes) not in self._meshes:
                text = self._mesh_text(axis, in_processes)
                is_there = any(
                    _is_same(ast.unparse(node), _renamed(text, {"mesh": name}))
                    for name, node in self._bound.items()
                )
                if len(users) > 1 or is_there:
                    own = f"{axis}_mesh" if axis.isidentifier() else "device_mesh"
                    new = _Function(text, imports=("import functools",))
                    name = self._placed(new, ["mesh", own], {})
                    self._meshes[axis, in_processes] = name
        return len(self._meshes) + self._is_converting > known

    def _mesh_text(self, axis: str, in_processes: bool) -> str:
        editor, step = self._editor, self._editor.step
        function, *args = all_devices(editor.quoted(axis), in_processes)
        call = editor.folded_call(function, args, step, len(f"{step}return "))
        return f"@functools.cache\ndef mesh():\n{step}return {call}\n"

    def _can_import(self, module: Module) -> bool:
        if not self._imported_as and not self.data:
            # A new module is formatted as the files are.
            self._editor = Editor(module.source)
        if module.path not in self._imported_as:
            found = import_paths.import_path(module, self.path)
            own = os.path.normpath(self.path)
            is_cyclic = import_paths.reaches(module, own, self._source.tree.body)
            self._imported_as[module.path] = "" if is_cyclic else found
        return bool(self._imported_as[module.path])

    def holds_functions_of(self, module: Module) -> bool:
        """Returns whether a file takes its functions from here; a notebook may have its own.

        Raises:
          HelpersError: if a file cannot import the module.
        """
        if self.is_here(module) or self._can_import(module):
            return True
        if module.source.cells:
            return False
        if import_paths.import_path(module, self.path):
            raise HelpersError(
                f"{module.path} cannot import {self.path}, which imports it: give --helpers a file "
                "that does not import the program's own modules"
            )
        raise HelpersError(
            f"{module.path} cannot import {self.path} as it imports other files: give --helpers a "
            f"file below {os.path.dirname(module.path) or os.curdir}, or leave {module.path} out "
            "with --exclude"
        )

    def is_imported(self, module: Module, node: ast.AST) -> bool:
        """Returns whether a node is an import of a name of the module."""
        parent = module.parent(node)
        return isinstance(parent, ast.ImportFrom) and _path_of(parent) == self._imported_as.get(
            module.path
        )

    def import_lines(self, module: Module, names: Mapping[str, str]) -> list[str]:
        """Returns the import that binds names of the module to those of a file, if it has none."""
        there = {
            (alias.name, alias.asname or alias.name)
            for node in module.source.tree.body
            if isinstance(node, ast.ImportFrom) and self.is_imported(module, node.names[0])
            for alias in node.names
        }
        texts = [
            name if name == own else f"{name} as {own}"
            for name, own in sorted(names.items())
            if (name, own) not in there
        ]
        if self.is_here(module) or not texts:
            return []
        return [f"from {self._imported_as[module.path]} import {', '.join(texts)}"]

    def written(self, after: Mapping[str, bytes]) -> bytes | None:
        """Returns the module with what files, as they are after the rewrite, take from it.

        None if they take nothing.

        Raises:
          HelpersError: if a name that is needed means something else in the module.
        """
        wanted = {name for path, data in after.items() for name in self._taken(path, data)}
        if not wanted:
            return None
        while new := {need for name in wanted for need in self._functions[name].needs} - wanted:
            wanted |= new
        meshes = set(self._meshes.values())
        ordered = sorted(self._functions, key=lambda name: name not in meshes)
        added = [self._functions[name] for name in ordered if name in wanted]
        added = [each for each in added if each.text]
        lines = dict.fromkeys(line for each in added for line in each.imports)
        own = [data for path, data in after.items() if os.path.realpath(path) == self.real]
        data = own[0] if own else self.data
        texts = "\n\n".join(each.text for each in added)
        data = data if data.strip() else _DOCSTRING.encode()
        return self._extended(data, list(lines), texts) if added else data

    def _taken(self, path: str, data: bytes) -> Iterator[str]:
        """Yields the names that a file imports from the module, or uses in it."""
        source = files.parse(path, data)
        if isinstance(source, Unreadable):
            return
        is_here = os.path.realpath(path) == self.real
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and _path_of(node) == self._imported_as.get(path):
                yield from (alias.name for alias in node.names if alias.name in self._functions)
            elif is_here and isinstance(node, ast.Name) and node.id in self._functions:
                yield node.id

    def _extended(self, data: bytes, lines: list[str], texts: str) -> bytes:
        module = Project([self.path]).module(self.path, data=data)
        if module is None:
            raise HelpersError(f"{self.path} cannot be read: give --helpers another file")
        for word in ("jax", *(line.split()[-1] for line in lines)):
            held = module.env.find(word)
            names = [fact.name for fact in held or () if isinstance(fact, Named)]
            if held is not None and not any(name.endswith(word) for name in names):
                raise HelpersError(
                    f"{word} means something else in {self.path}: give --helpers another file"
                )
        data = applied(data, added_imports.added(module.source, ["import jax", *lines]))
        source = files.parse(self.path, data)
        assert not isinstance(source, Unreadable)
        start = last = len(source.lines)
        while start > 1 and not source.line(start).strip():
            start -= 1
        end = (last, len(source.line(last)))
        return applied(data, [between((start, len(source.line(start))), end, f"\n\n\n{texts}")])


def _read(path: str, root: str) -> tuple[bytes, Source]:
    """Returns the module as it is, empty if it does not exist."""
    real = os.path.realpath(path)
    if not path.endswith(".py") or not os.path.basename(path)[:-3].isidentifier():
        raise HelpersError(f"{path} is no module: give --helpers a file such as pkg/sharding.py")
    if not real.startswith(root + os.sep):
        raise HelpersError(f"{path} is outside the project: give --helpers a file below {root}")
    data = files.read_bytes(path) if os.path.exists(path) else b""
    source = files.parse(path, data) if isinstance(data, bytes) else data
    if isinstance(source, Unreadable) or not isinstance(data, bytes):
        raise HelpersError(f"{path} cannot be read: {getattr(source, 'reason', '')}")
    return data, source


def _names_bound(node: ast.stmt) -> Iterable[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    return bound_or_imported(part for part in ast.walk(node) if not isinstance(part, ast.arg))


def _path_of(node: ast.ImportFrom) -> str:
    return "." * node.level + (node.module or "")


def _renamed(text: str, names: Mapping[str, str]) -> str:
    changed = {old: new for old, new in names.items() if old != new}
    if not changed:
        return text
    return re.sub(rf"(?<![.\w])({'|'.join(changed)})\b", lambda found: changed[found[0]], text)


def _is_same(text: str, other: str) -> bool:
    return ast.dump(ast.parse(text)) == ast.dump(ast.parse(other))
