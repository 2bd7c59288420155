"""Functions of the program that may ask which device they run on, by their names.

A call whose function is not found may be of one of these, if it has the name of one, or if one of
them is handed around as a value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Set

from pmapx._src.analysis import syntax
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Bound, Exported, Function
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
# What these make of a function is followed where it is called.
_TRANSFORMS = frozenset(
    {
        "jit", "pmap", "vmap", "grad", "value_and_grad", "checkpoint", "remat", "partial", "scan",
        "cond", "switch", "while_loop", "fori_loop", "tree_map", "map",
    }
)  # fmt: skip
Tree = tuple[ast.AST, Module | None]


class Differing:
    """Which names such functions go by."""

    def __init__(self, modules: Iterable[Module]) -> None:
        several = list(modules)
        trees: list[Tree] = [(module.source.tree, module) for module in several]
        project = several[0].project if several else None
        mapped = set() if project is None else {getattr(n, "name", "") for n in project.mapped}
        read = {module.path for module in several}
        for path in project.paths.values() if project is not None else ():
            data = files.read_bytes(path) if path not in read and path.endswith(".py") else None
            if isinstance(data, bytes) and _PATTERN.search(data):
                source = files.parse(path, data)
                if not isinstance(source, Unreadable):
                    trees.append((source.tree, None))
        is_named = len(trees) > len(several) or any(
            _PATTERN.search(module.source.text.encode("utf-8", "replace")) for module in several
        )
        self._names = _reaching(trees, mapped) if is_named else set()
        self._is_handed_around = any(_is_value(tree, self._names) for tree in trees if self._names)

    @property
    def is_any(self) -> bool:
        return bool(self._names)

    def may_be(self, name: str) -> bool:
        """Tells whether a function that is not found may differ between devices, by its name."""
        return self._is_handed_around or name in self._names


def _reaching(trees: Iterable[Tree], mapped: Set[str]) -> set[str]:
    """Returns the names of all definitions that lead to such a function, but through a map."""
    mentioned: dict[str, set[str]] = {}
    for tree in trees:
        for node in _nodes(tree):
            if isinstance(node, _DEFINITIONS) and node.name not in mapped:
                names = _names_in(node)
                # What makes or calls maps is not called in a body.
                if "pmap" not in names and not names & mapped:
                    mentioned.setdefault(node.name, set()).update(names)
    found: set[str] = set()
    new = set(_WORDS)
    while new:
        new = {name for name, names in mentioned.items() if name not in found and names & new}
        found |= new
    return found


def _nodes(tree: Tree) -> list[ast.AST]:
    return syntax.walk(tree[0]) if tree[1] is None else tree[1].nodes


def _names_in(definition: ast.AST) -> set[str]:
    """Returns the names that a definition uses itself; functions in it are definitions, too."""
    found = set()
    is_class = isinstance(definition, ast.ClassDef)
    waiting = list(syntax.children(definition))
    while waiting:
        node = waiting.pop()
        found.add(_name(node))
        if is_class or not isinstance(node, _DEFINITIONS):
            waiting += syntax.children(node)
    return found - {""}


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _is_value(tree: Tree, names: Set[str]) -> bool:
    """Tells whether any of the functions is used other than by a call or a transformation."""
    followed: set[int] = set()
    for node in _nodes(tree):
        if isinstance(node, ast.Call):
            followed.add(id(node.func))
            callees = tree[1].facts.callees.get(node) if tree[1] is not None else None
            is_inside = callees and all(isinstance(f, (Function, Bound)) for f in callees)
            if is_inside or _name(node.func) in _TRANSFORMS:
                followed.update(map(id, (*node.args, *(k.value for k in node.keywords))))
    return any(
        _name(node) in names
        and id(node) not in followed
        and isinstance(node.ctx, ast.Load)  # type: ignore[attr-defined]
        and _may_be_function(node, tree[1])
        for node in _nodes(tree)
    )


def _may_be_function(node: ast.AST, module: Module | None) -> bool:
    """Tells whether a name is a function's: ``config.mixup`` is a setting."""
    if not isinstance(node, ast.Attribute) or module is None:
        return True
    if not isinstance(node.value, ast.Name):
        return False
    held = module.env.find(node.value.id) or frozenset()
    return node.value.id in ("self", "cls") or any(isinstance(f, Exported) for f in held)
