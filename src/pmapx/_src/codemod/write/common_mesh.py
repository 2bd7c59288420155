"""A mesh that is needed in several places, made by a function that all of them can call.

A mesh of several files is made by a function of a module that they all import already, so that
without ``--helpers`` no file gets a new import for it: ``mesh = utils.device_mesh("batch")`` where
a file has ``utils`` from its package. A file of a multi-process program that would make its mesh in
several places has such a function itself.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Named
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.text.name_uses import name_uses
from pmapx._src.codemod.write.shared_module import all_devices
from pmapx._src.source import files
from pmapx._src.source.rewriting.edits import Edit, applied, between

if TYPE_CHECKING:
    from pmapx._src.codemod.write.rewrite import Rewriting

# With fewer files, each makes its own; with fewer meshes in a file, each place does.
FEWEST = 3
NAME = "device_mesh"
_MADE = re.compile(rb"jax\.(?:make_mesh|sharding\.Mesh)\(")


class CommonMesh:
    """Which files need a mesh, and the modules with a function that makes it for several."""

    def __init__(self) -> None:
        # Of each file that needs a mesh: the modules that it imports, and its names for them.
        self._users: dict[str, dict[str, str]] = {}
        self._modules: dict[str, tuple[Module, bool]] = {}
        # The module whose function makes the mesh of a file.
        self._homes: dict[str, str] = {}

    def call(self, module: Module, axis: str, in_processes: bool) -> str:
        """Returns the call that makes a mesh in a file, empty if the file makes its own."""
        path = os.path.normpath(module.path)
        if path not in self._users and not module.source.cells:
            self._modules[path] = module, in_processes
            self._users[path] = _imported_modules(module)
        home = self._homes.get(path)
        if home is None:
            return ""
        of = "" if home == path else f"{self._users[path][home]}."
        return f"{of}{NAME}({axis})"

    def choose(self, files: Sequence[Rewriting]) -> bool:
        """Chooses modules that many files import, of those that need a mesh themselves.

        Of the other files, given as they are without such a function, those of multi-process
        programs with many meshes are chosen: theirs take five lines each.
        """
        left = dict(self._users)
        while True:
            found: collections.Counter[str] = collections.Counter()
            for path, imported in left.items():
                is_like = self._modules[path][1]
                homes = {*imported, path} & self._users.keys()
                found.update(home for home in homes if self._modules[home][1] == is_like)
            fits = [home for home, count in found.items() if count >= FEWEST]
            fits = [home for home in fits if _can_have(self._modules[home][0])]
            if not fits:
                break
            home = min(fits, key=lambda each: (-found[each], each))
            in_processes = self._modules[home][1]
            for path, imported in list(left.items()):
                if home in (path, *imported) and self._modules[path][1] == in_processes:
                    self._homes[path] = home
                    del left[path]
        for file in files:
            path = os.path.normpath(file.path)
            module, in_processes = self._modules[path] if path in left else (None, False)
            made = len(_MADE.findall(file.after)) - len(_MADE.findall(file.before))
            if module is not None and in_processes and made >= FEWEST and _can_have(module):
                self._homes[path] = path
        return bool(self._homes)

    def home_of(self, path: str) -> str | None:
        """Returns the module that a file has its mesh from, which may be the file itself."""
        return self._homes.get(os.path.normpath(path))

    def with_function(self, path: str, data: bytes) -> bytes:
        """Returns the text of a file with the function that makes the mesh, if it is to have it."""
        path = os.path.normpath(path)
        if path not in self._homes.values():
            return data
        module, in_processes = self._modules[path]
        editor = Editor(module.source)
        step = editor.step
        function, *args = all_devices("axis_name", in_processes)
        made = editor.folded_call(function, args, step, len(f"{step}return "))
        order = "; those of a process are next to each other" if in_processes else ""
        docstring = f'"""Returns the mesh of all devices{order}."""'
        text = f"def {NAME}(axis_name):\n{step}{docstring}\n{step}return {made}\n"
        source = files.parse(module.path, data)
        assert isinstance(source, files.Source)
        return applied(data, [_above_functions(source, text)])


def written(
    modules: Sequence[tuple[str, Module]],
    write: Callable[[Sequence[tuple[str, Module]], CommonMesh], list[Rewriting]],
) -> list[Rewriting]:
    """Returns files as ``write`` writes them, with a mesh of several of them in a module."""
    common = CommonMesh()
    found = write(modules, common)
    if not common.choose(found):
        return found
    taking = [(path, module) for path, module in modules if common.home_of(module.path)]
    taken = write(taking, common)
    # Without many meshes, a form that needs none may be the better one.
    called = {common.home_of(file.path) for file in taken if f"{NAME}(".encode() in file.after}
    again = {
        file.path: dataclasses.replace(file, after=common.with_function(file.path, file.after))
        if os.path.normpath(file.path) in called
        else file
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


def _can_have(module: Module) -> bool:
    """Returns whether a module can have the function: its name is free, and jax is JAX."""
    uses = name_uses(module)
    is_free = NAME not in uses.bound and NAME not in uses.names
    return is_free and module.env.find("jax") == frozenset({Named("jax")})


def _above_functions(source: files.Source, text: str) -> Edit:
    """Puts a function above the first of a module, or behind all."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    first = next((node for node in source.tree.body if isinstance(node, kinds)), None)
    if first is None:
        end = len(source.lines)
        return between((end, len(source.line(end))), (end, len(source.line(end))), f"\n\n{text}")
    line = min([first.lineno, *(each.lineno for each in first.decorator_list)])
    while source.line(line - 1).startswith("#"):
        line -= 1
    return between((line, 0), (line, 0), f"{text}\n\n")
