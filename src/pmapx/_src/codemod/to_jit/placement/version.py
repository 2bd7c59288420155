"""One version of a program's files, and where its jitted functions are made in them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pmapx._src.codemod.to_jit.decisions import Decision
from pmapx._src.source import files as sources
from pmapx._src.source.files import Source
from pmapx._src.source.rewriting.edits import Edit, Origins, applied, starts


class CannotEditError(Exception):
    """Why a version stays as it is."""


@dataclasses.dataclass(frozen=True)
class Version:
    """The files by their real paths; the sites are those of `conversion`."""

    root: Path
    data: Mapping[str, bytes]
    sites: Sequence[Mapping[str, Any]]

    @functools.cached_property
    def sources(self) -> dict[str, Source]:
        """The files with a use of JAX, as they are read."""
        read = {
            path: sources.parse(path, data) for path, data in self.data.items() if b"jax" in data
        }
        return {path: source for path, source in read.items() if isinstance(source, Source)}

    def path(self, site: Mapping[str, Any]) -> str:
        return os.path.join(self.root, site["file"])

    def jit(self, site: Mapping[str, Any]) -> ast.expr:
        """Returns the call or decorator that makes a jitted function."""
        source = self.sources[self.path(site)]
        wanted = (site["line"], site["end_line"])
        return next(node for node in _jits(source.tree) if (node.lineno, node.end_lineno) == wanted)

    def edited(self, edits: Mapping[str, Sequence[Edit]]) -> Version:
        """Returns the version with edits, in the files where there are some.

        Raises:
          CannotEditError: if the edits do not fit together.
        """
        data = {**self.data}
        for path, here in edits.items():
            try:
                data[path] = applied(self.data[path], here)
            except ValueError as error:
                raise CannotEditError(f"{os.path.basename(path)}: {error}") from None
        new = Version(self.root, data, ())
        for path in edits:
            if path not in new.sources:
                raise CannotEditError(f"{os.path.basename(path)} would not parse")
        sites = [
            _moved(each, self, new, edits[self.path(each)]) if self.path(each) in edits else each
            for each in self.sites
        ]
        return dataclasses.replace(new, sites=sites)

    def without_unused(self, old: Version) -> Version:
        """Returns the version without the meshes and shardings that lost their last use."""
        version = self
        while True:
            known = version._unused() - old._unused()
            removed = {
                path: [
                    Edit(node.lineno, 0, (node.end_lineno or node.lineno) + 1, 0)
                    for scope, node in _placing(source.tree)
                    if (path, *_names(scope, node)) in known
                ]
                for path, source in version.sources.items()
            }
            if not any(removed.values()):
                return version
            version = version.edited({path: edits for path, edits in removed.items() if edits})

    def _unused(self) -> set[tuple[str, str, str]]:
        """Returns the meshes and shardings that nothing uses: the file, the scope and the name."""
        found = set()
        for path, source in self.sources.items():
            for scope, node in _placing(source.tree):
                (where, name) = _names(scope, node)
                used = _loaded(scope)
                if isinstance(scope, ast.Module):
                    others = [each for other, each in self.sources.items() if other != path]
                    used |= {name for each in others for name in _from_elsewhere(each.tree)}
                if name not in used:
                    found.add((path, where, name))
        return found


Holds = Callable[[Sequence[Decision], Version], bool]
"""Runs a version; refuses the maps that differ in it, and returns whether there are none."""


def _placing(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Assign]]:
    """Yields the statements that name a mesh or a sharding, each with its scope."""
    kinds = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)
    for scope in (node for node in ast.walk(tree) if isinstance(node, kinds)):
        for node in scope.body:
            is_named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            if is_named and _is_placing(node.value):  # type: ignore[attr-defined]
                yield scope, node  # type: ignore[misc]


def _names(scope: ast.AST, node: ast.Assign) -> tuple[str, str]:
    return getattr(scope, "name", ""), ast.unparse(node.targets[0])


def _loaded(scope: ast.AST) -> set[str]:
    names = (node for node in ast.walk(scope) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Load)}


def _from_elsewhere(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.alias | ast.Attribute):
            yield node.name if isinstance(node, ast.alias) else node.attr


def _is_placing(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in (
        "jax.make_mesh", "jax.sharding.Mesh", "jax.NamedSharding",
    )  # fmt: skip


def _moved(
    site: Mapping[str, Any], old: Version, new: Version, edits: Sequence[Edit]
) -> Mapping[str, Any]:
    path = old.path(site)
    origins, source = Origins(old.data[path], edits), new.sources[path]
    wanted = starts(old.sources[path].place(old.jit(site)))
    for node in _jits(source.tree):
        if starts(origins.place(source.place(node))) == wanted:
            return {**site, "line": node.lineno, "end_line": node.end_lineno}
    raise CannotEditError(f"the jitted function at {site['file']}:{site['line']} is not found")


def _jits(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.Attribute) and "jax.jit" in ast.unparse(node):
            yield node
