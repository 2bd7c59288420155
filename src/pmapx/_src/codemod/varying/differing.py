"""Functions of the program that may ask which device they run on, by their names.

A call whose function is not found may be of one of these, if it has the name of one, or if one of
them is handed around as a value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Set

from pmapx._src.analysis.module import Module
from pmapx._src.source import files
from pmapx._src.source.discovery import Unreadable

_WORDS = frozenset(
    {
        "axis_index", "ppermute", "pshuffle", "pswapaxes", "all_to_all", "psum_scatter",
        "pure_callback", "io_callback", "host_callback", "id_tap", "ragged_all_to_all",
    }
)  # fmt: skip
_PATTERN = re.compile("|".join(sorted(_WORDS)).encode())
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Differing:
    """Which names such functions go by."""

    def __init__(self, modules: Iterable[Module]) -> None:
        several = list(modules)
        trees = [module.source.tree for module in several]
        project = several[0].project if several else None
        mapped = set() if project is None else {getattr(n, "name", "") for n in project.mapped}
        read = {module.path for module in several}
        for path in project.paths.values() if project is not None else ():
            data = files.read_bytes(path) if path not in read and path.endswith(".py") else None
            if isinstance(data, bytes) and _PATTERN.search(data):
                source = files.parse(path, data)
                if not isinstance(source, Unreadable):
                    trees.append(source.tree)
        self._names = _reaching(trees, mapped) - mapped
        self._is_handed_around = any(_is_value(tree, self._names) for tree in trees)

    @property
    def is_any(self) -> bool:
        return bool(self._names)

    def may_be(self, name: str) -> bool:
        """Tells whether a function that is not found may differ between devices, by its name."""
        return self._is_handed_around or name in self._names


def _reaching(trees: Iterable[ast.AST], mapped: Set[str]) -> set[str]:
    """Returns the names of all definitions that lead to such a function, but through a map."""
    mentioned: dict[str, set[str]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, _DEFINITIONS):
                mentioned.setdefault(node.name, set()).update(_names_in(node))
    found: set[str] = set()
    new = set(_WORDS)
    while new:
        new = {name for name, names in mentioned.items() if name not in found and names & new}
        found |= new
        new -= mapped
    return found


def _names_in(definition: ast.AST) -> set[str]:
    """Returns the names that a definition uses itself; functions in it are definitions, too."""
    found = set()
    is_class = isinstance(definition, ast.ClassDef)
    waiting = list(ast.iter_child_nodes(definition))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        if is_class or not isinstance(node, _DEFINITIONS):
            waiting += ast.iter_child_nodes(node)
    return found


def _is_value(tree: ast.AST, names: set[str]) -> bool:
    """Tells whether any of the functions is used other than by a call."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return any(
        isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and (node.id if isinstance(node, ast.Name) else node.attr) in names
        and id(node) not in called
        for node in ast.walk(tree)
    )
