"""How often the files of a program name a function: one that only its map names can be edited."""

from __future__ import annotations

import ast
import collections
import os
import re
import weakref

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.source import files


class _Names:
    """How often the files of a project name something, and which of them import each other."""

    def __init__(self, project: Project) -> None:
        self._names: dict[str, collections.Counter[str]] = {}
        self._texts: collections.Counter[str] = collections.Counter()
        self._importers: dict[str, set[str]] = {}
        # The words of files that have nothing to do with maps.
        self._others: list[frozenset[str]] = []
        for path, module in project.modules.items():
            found = self._names[path] = collections.Counter()
            for node in module.nodes if module is not None else ():
                if isinstance(node, ast.Name):
                    found[node.id] += 1
                elif isinstance(node, ast.Attribute):
                    # ``jax.random.split`` is no function of the program.
                    reference = module.facts.references.get(node)  # type: ignore[union-attr]
                    if reference is None or not reference.name.startswith(("jax.", "numpy.")):
                        found[node.attr] += 1
                elif isinstance(node, ast.alias):
                    found[node.asname or node.name] += 1
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    self._texts[node.value] += 1
                elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    found[node.name] += 1
                elif isinstance(node, ast.Import):
                    for each in node.names:
                        self._add(project, path, each.name, 0)
                if isinstance(node, ast.ImportFrom):
                    start = f"{node.module}." if node.module else ""
                    for name in (node.module or "", *(start + each.name for each in node.names)):
                        self._add(project, path, name, node.level)
        kept = {name for found in self._names.values() for name in found}
        kept |= {_module_name(path) for path in self._names}
        for path, given in project.paths.items():
            data = files.read_bytes(given) if path not in self._names else None
            if isinstance(data, bytes):
                words = re.findall(r"\w+", data.decode("utf-8", "replace"))
                self._others.append(frozenset(kept.intersection(words)))

    def _add(self, project: Project, path: str, name: str, level: int) -> None:
        target = project.module_path(path, name, level)
        if target is not None:
            self._importers.setdefault(os.path.normpath(target), set()).add(path)

    def count(self, name: str, home: str | None) -> int:
        """Returns how often a name stands in files that may reach a module, all without one."""
        paths = set(self._names) if home is None else {home}
        waiting = [] if home is None else [home]
        while waiting:
            new = self._importers.get(waiting.pop(), set()) - paths
            paths |= new
            waiting += new
        known = {name} if home is None else {name, _module_name(home)}
        others = sum(known <= words for words in self._others)
        return others + self._texts[name] + sum(self._names[path][name] for path in paths)


def _module_name(path: str) -> str:
    """Returns the last part of a module's name."""
    folder, name = os.path.split(path)
    stem = name.partition(".")[0]
    return os.path.basename(folder) if stem == "__init__" else stem


_NAMES: weakref.WeakKeyDictionary[Project, _Names] = weakref.WeakKeyDictionary()


def is_named_once(module: Module, node: ast.AST, name: str, times: int = 2) -> bool:
    """Returns whether a name has one definition and one use, in all files that may know it.

    A file of another program may have a function of the same name. An object's methods may be
    called anywhere, a function inside of another only there.
    """
    around = module.functions_around(node)
    if around and isinstance(module.parent(node), ast.FunctionDef):
        parts = [part for part in ast.walk(around[0]) if name in _names_in(part)]
        if not any(isinstance(part, (ast.Global, ast.Nonlocal)) for part in parts):
            return len(parts) == times
    project, path = module.project, os.path.normpath(module.path)
    if project not in _NAMES:
        _NAMES[project] = _Names(project)
    is_method = isinstance(module.parent(node), ast.ClassDef)
    is_known = not is_method and path in project.modules
    return _NAMES[project].count(name, path if is_known else None) == times


def _names_in(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return node.names
    held = (getattr(node, key, None) for key in ("id", "name", "attr", "arg"))
    return [each for each in held if isinstance(each, str)]
