"""Functions that several places call, in a module that all of them import already.

Without ``--helpers``, no file gets a new import for them: ``mesh = utils.device_mesh("batch")``
makes a mesh where a file has ``utils`` from its package, and ``utils.host_local_shard_map``
maps over it and converts the arrays of a multi-process program. A file of such a program that would
make its mesh, or convert, in several places has the function itself.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.analysis.values import Named
from pmapx._src.codemod.forms import host_local
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.text.name_uses import name_uses
from pmapx._src.codemod.write.shared_module import all_devices
from pmapx._src.emitted import functions
from pmapx._src.source import files
from pmapx._src.source.rewriting import added_imports
from pmapx._src.source.rewriting.edits import Edit, applied, between

if TYPE_CHECKING:
    from pmapx._src.codemod.write.rewrite import Rewriting

MESH = "device_mesh"
_MADE = re.compile(rb"jax\.(?:make_mesh|sharding\.Mesh)\(")


class CommonFunctions:
    """Which files need a mesh or convert arrays, and the modules with functions for several."""

    def __init__(self) -> None:
        # Of each file that needs a mesh: the modules that it imports, and its names for them.
        self._users: dict[str, dict[str, str]] = {}
        self._modules: dict[str, tuple[Module, bool]] = {}
        # How many maps of a file convert their arrays as a whole.
        self._converted: dict[str, int] = {}
        # How many of them need the second function.
        self._later: dict[str, int] = {}
        # The module whose function makes the mesh of a file, and the one that converts its arrays.
        self._homes: dict[str, str] = {}
        self._converting: dict[str, str] = {}

    def mesh(self, module: Module, axis: str, in_processes: bool) -> str:
        """Returns the call that makes a mesh in a file, empty if the file makes its own."""
        path = self._added(module, in_processes)
        name = self._called(path, self._homes.get(path), MESH)
        return f"{name}({axis})" if name else ""

    def share_conversions(self, module: Module, uses: Sequence[Use]) -> None:
        """Lets one function convert for the maps of a file whose arrays are all host-local."""
        uses = host_local.sharing(uses)
        if uses:
            path = self._added(module, in_processes=True)
            later = [use for use in uses if host_local.needs_later(use)]
            self._converted[path] = len(uses) - len(later)
            self._later[path] = sum(map(host_local.weight, later))
            home = self._converting.get(path)
            name = self._function_of(home)
            for use in uses:
                if name == host_local.LATER or use not in later:
                    use.conversion = self._called(path, home, name)

    def _function_of(self, home: str | None) -> str:
        """Returns the function that converts for files that have it from a module.

        The second one is long: a few maps that need it are not worth it where others do not.
        """
        users = [path for path, each in self._converting.items() if each == home]
        later = sum(self._later[path] for path in users)
        early = sum(self._converted[path] for path in users)
        is_later = later >= host_local.FEWEST_LATER or early < host_local.FEWEST
        return host_local.LATER if later and is_later else host_local.NAME

    def _added(self, module: Module, in_processes: bool) -> str:
        path = os.path.normpath(module.path)
        if path not in self._users and not module.source.cells:
            self._modules[path] = module, in_processes
            self._users[path] = _imported_modules(module)
        return path

    def _called(self, path: str, home: str | None, function: str) -> str:
        """Returns how a file calls a function of a module."""
        if home is None:
            return ""
        return function if home == path else f"{self._users[path][home]}.{function}"

    def choose(self, files: Sequence[Rewriting]) -> bool:
        """Chooses modules that many files import, of those that need a mesh themselves.

        Of the other files, given as they are without such a function, those with many meshes are
        chosen.
        """
        self._homes = self._chosen(dict.fromkeys(self._users, 1), MESH)
        self._converting = self._chosen(self._converted, host_local.NAME)
        left = {
            path: count + self._later[path]
            for path, count in self._converted.items()
            if path not in self._converting
        }
        self._converting |= self._chosen(left, host_local.LATER, host_local.FEWEST_LATER)
        for file in files:
            path = os.path.normpath(file.path)
            is_left = path in self._users and path not in self._homes
            module = self._modules[path][0] if is_left else None
            made = len(_MADE.findall(file.after)) - len(_MADE.findall(file.before))
            if module is not None and made >= host_local.FEWEST and _can_have(module, MESH):
                self._homes[path] = path
        return bool(self._homes or self._converting)

    def _chosen(
        self, needs: Mapping[str, int], name: str, fewest: int = host_local.FEWEST
    ) -> dict[str, str]:
        """Returns the modules that files have a function from, given in how many places they do."""
        homes: dict[str, str] = {}
        left = {path: self._users[path] for path in needs if path in self._users}
        while True:
            found: collections.Counter[str] = collections.Counter()
            for path, imported in left.items():
                for home in {*imported, path} & self._users.keys():
                    if self._modules[home][1] == self._modules[path][1]:
                        found[home] += needs[path]
            fits = [home for home, count in found.items() if count >= fewest]
            fits = [home for home in fits if _can_have(self._modules[home][0], name)]
            if not fits:
                return homes
            chosen = min(fits, key=lambda each: (-found[each], each))
            for path, imported in list(left.items()):
                is_like = self._modules[path][1] == self._modules[chosen][1]
                if chosen in (path, *imported) and is_like:
                    homes[path] = chosen
                    del left[path]

    def homes_of(self, path: str) -> set[tuple[str, str]]:
        """Returns the functions that a file may call, with their modules."""
        path = os.path.normpath(path)
        converting = self._converting.get(path)
        found = {(MESH, self._homes.get(path)), (self._function_of(converting), converting)}
        return {(name, home) for name, home in found if home is not None}

    def with_functions(self, path: str, data: bytes, called: Set[tuple[str, str]]) -> bytes:
        """Returns the text of a file with those functions that are called of it."""
        path = os.path.normpath(path)
        names = (host_local.NAME, host_local.LATER, MESH)
        wanted = [name for name in names if (name, path) in called]
        # A file that calls it has it already.
        wanted = [name for name in wanted if f"def {name}(".encode() not in data]
        module, in_processes = self._modules.get(path, (None, False))
        if not wanted or module is None:
            return data
        if wanted != [MESH]:
            after = Project([module.path]).module(module.path, data=data)
            assert after is not None
            lines = functions.imports(name for name in wanted if name != MESH)
            data = applied(data, added_imports.added(after.source, lines))
        for name in wanted:
            if name == MESH:
                text = self._mesh_function(module, in_processes)
            else:
                text = functions.text(name, Editor(module.source).step)
            source = files.parse(module.path, data)
            assert isinstance(source, files.Source)
            data = applied(data, [_above_functions(source, name, text)])
        return data

    def _mesh_function(self, module: Module, in_processes: bool) -> str:
        editor = Editor(module.source)
        step = editor.step
        function, *args = all_devices("axis_name", in_processes)
        made = editor.folded_call(function, args, step, len(f"{step}return "))
        order = ", those of a process side by side" if in_processes else ""
        docstring = f'"""Returns the mesh of all devices{order}."""'
        return f"def {MESH}(axis_name):\n{step}{docstring}\n{step}return {made}\n"


def written(
    modules: Sequence[tuple[str, Module]],
    write: Callable[[Sequence[tuple[str, Module]], CommonFunctions], list[Rewriting]],
) -> list[Rewriting]:
    """Returns files as ``write`` writes them, with functions for several of them in a module."""
    common = CommonFunctions()
    found = write(modules, common)
    if not common.choose(found):
        return found
    taking = [(path, module) for path, module in modules if common.homes_of(module.path)]
    taken = write(taking, common)
    # Without many meshes, a form that needs none may be the better one.
    called = {
        (name, home)
        for file in taken
        for name, home in common.homes_of(file.path)
        if f"{name}(".encode() in file.after
    }
    again = {
        file.path: dataclasses.replace(
            file, after=common.with_functions(file.path, file.after, called)
        )
        for file in taken
    }
    return [again.get(file.path, file) for file in found]


def _imported_modules(module: Module) -> dict[str, str]:
    """Returns the modules of the project that a file has names for, by their normal paths."""
    found = {}
    bound = name_uses(module).bound
    for node in module.source.tree.body:
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        of = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        level = node.level if isinstance(node, ast.ImportFrom) else 0
        for alias in node.names:
            name = alias.asname or alias.name
            if not name.isidentifier() or bound.get(name) != [alias]:
                # Its name is in another module's, or means something else in some function.
                continue
            path = module.project.module_path(
                module.path, f"{of}.{alias.name}" if of else alias.name, level
            )
            if path is not None:
                found[os.path.normpath(path)] = name
    return found


def _can_have(module: Module, name: str) -> bool:
    """Returns whether a module can have a function: its name is free, and jax is JAX."""
    uses = name_uses(module)
    is_free = name not in uses.bound and name not in uses.names
    return is_free and module.env.find("jax") == frozenset({Named("jax")})


def _above_functions(source: files.Source, name: str, text: str) -> Edit:
    """Puts a function above the first of a module, and what calls it, or behind all."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    first = next(
        (
            node
            for node in source.tree.body
            if isinstance(node, kinds) or f"{name}(" in source.segment(source.place(node))
        ),
        None,
    )
    if first is None:
        end = len(source.lines)
        return between((end, len(source.line(end))), (end, len(source.line(end))), f"\n\n{text}")
    line = Editor(source).line_above(first)
    # Two blank lines above, of which there may be one below imports.
    gap = "\n" if line > 2 and source.line(line - 2).strip() else ""
    return between((line, 0), (line, 0), f"{gap}{text}\n\n")
