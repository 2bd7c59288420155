"""How one file of a project imports another: absolute or relative, as its package does."""

from __future__ import annotations

import ast
import keyword
import os
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.source import files
from pmapx._src.source.discovery import Unreadable


def import_path(module: Module, target: str) -> str:
    """Returns what stands between ``from`` and ``import``, empty if the file cannot be imported."""
    target = os.path.abspath(target)
    folder, top = os.path.dirname(os.path.abspath(module.path)), _top_package(module.path)
    is_same_package = bool(top) and target.startswith(top + os.sep)
    if is_same_package and _is_relative(module, top):
        return _relative(folder, target)
    for root in _roots(module, top):
        parts = _parts(root, target)
        if parts:
            return ".".join(parts)
    return _relative(folder, target) if is_same_package else ""


def reaches(module: Module, start: str, body: list[ast.stmt]) -> bool:
    """Returns whether importing a file with these statements imports a module in turn."""
    wanted = os.path.realpath(module.path)
    found, new = {start}, [(start, body)]
    while new:
        path, statements = new.pop()
        for target in _imported_paths(module, path, statements):
            if os.path.realpath(target) == wanted:
                return True
            if target not in found:
                found.add(target)
                source = files.parse(target, _data(target))
                if not isinstance(source, Unreadable):
                    new.append((target, source.tree.body))
    return False


def _data(path: str) -> bytes:
    data = files.read_bytes(path)
    return data if isinstance(data, bytes) else b""


def _imported_paths(module: Module, path: str, body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        for name, level in _imported_names(node):
            target = module.project.module_path(path, name, level)
            if target is not None:
                yield target


def _imported_names(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, 0) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.module or "", node.level
        prefix = f"{node.module}." if node.module else ""
        yield from ((prefix + alias.name, node.level) for alias in node.names)


def _top_package(path: str) -> str:
    """Returns the folder of the outermost package that a file is in, empty if it is in none."""
    found, folder = "", os.path.dirname(os.path.abspath(path))
    while os.path.exists(os.path.join(folder, "__init__.py")):
        found, folder = folder, os.path.dirname(folder)
    return found


def _is_relative(module: Module, top: str) -> bool:
    """Returns whether a file imports from its package by relative imports; else, if most do."""
    everyone = [other for other in module.project.modules.values() if other is not None]
    for modules in ([module], everyone):
        relative = absolute = 0
        for each in modules:
            if _top_package(each.path) == top:
                names = [name for node in each.nodes for name in _imported_names(node)]
                relative += sum(level > 0 for _, level in names)
                package = os.path.basename(top)
                absolute += sum(not at and n.split(".")[0] == package for n, at in names)
        if relative or absolute:
            return relative > absolute
    return False


def _relative(folder: str, target: str) -> str:
    parts = os.path.relpath(target.removesuffix(".py"), folder).split(os.sep)
    above = parts.count(os.pardir)
    return "." * (above + 1) + ".".join(parts[above:])


def _roots(module: Module, top: str) -> Iterator[str]:
    """Yields the folders that a file imports from, those that its imports show first."""
    folder = os.path.dirname(module.path)
    beside = [
        other
        for other in module.project.modules.values()
        if other is not None and other is not module and os.path.dirname(other.path) == folder
    ]
    for each in (module, *beside):
        for node in each.nodes:
            for name, level in _imported_names(node):
                path = None if level else module.project.module_path(each.path, name, 0)
                root = _root(path, name) if path is not None else ""
                if root:
                    yield root
    yield os.path.dirname(top) if top else os.path.abspath(folder)


def _root(path: str, name: str) -> str:
    stem = os.path.abspath(path).removesuffix(".py").removesuffix(f"{os.sep}__init__")
    below = os.sep + name.replace(".", os.sep)
    return stem.removesuffix(below) if stem.endswith(below) else ""


def _parts(root: str, target: str) -> list[str]:
    """Returns the names that lead to a file from a folder, empty if they cannot be imported."""
    parts = os.path.relpath(target.removesuffix(".py"), root).split(os.sep)
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    is_name = all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
    return parts if is_name else []
