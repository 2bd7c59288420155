"""Statements of a program that a value of its maps may reach, by the names that they share.

Most of a large file has nothing to do with its maps. A top-level statement is connected if it
mentions what a connected one defines, or defines what a connected one mentions: functions, classes,
methods, attributes and global names. Words in strings and comments count, so that none is missed.
"""

from __future__ import annotations

import ast
import bisect
import collections
import re
from collections.abc import Iterable, Iterator, Sequence

from pmapx._src.analysis.module import Module
from pmapx._src.source.files import first_line

_WORD = re.compile(r"[^\W\d]\w*")


class ConnectedCode:
    """The statements of each module that are connected with a use of pmap."""

    def __init__(self, modules: Sequence[Module], seeds: Iterable[tuple[Module, int]]) -> None:
        """Begins at the statements on these lines."""
        self._statements = {module: _Statements(module) for module in modules}
        mentioning: dict[str, list[tuple[Module, int]]] = collections.defaultdict(list)
        defining: dict[str, list[tuple[Module, int]]] = collections.defaultdict(list)
        for module, each in self._statements.items():
            for number, (words, defined) in enumerate(each.found):
                for word in defined:
                    defining[word].append((module, number))
                for word in words:
                    mentioning[word].append((module, number))
        self._connected: set[tuple[Module, int]] = set()
        new = [
            (module, self._statements[module].number(line))
            for module, line in seeds
            if module in self._statements
        ]
        seen: set[tuple[str, bool]] = set()
        while new:
            module, number = new.pop()
            if (module, number) in self._connected or number < 0:
                continue
            self._connected.add((module, number))
            words, defined = self._statements[module].found[number]
            for table, several, kind in ((defining, words, True), (mentioning, defined, False)):
                for word in several:
                    if (word, kind) not in seen:
                        seen.add((word, kind))
                        new += table.get(word, ())

    def of(self, module: Module) -> list[ast.stmt]:
        """Returns the connected statements of a module's top level."""
        body = module.source.tree.body
        return [each for i, each in enumerate(body) if (module, i) in self._connected]

    def has(self, module: Module, node: ast.AST) -> bool:
        """Returns whether a node is in a connected statement."""
        number = self._statements[module].number(node.lineno)  # type: ignore[attr-defined]
        return (module, number) in self._connected


class _Statements:
    """The words of each top-level statement of a module, and those that it defines."""

    def __init__(self, module: Module) -> None:
        body = module.source.tree.body
        self._starts = [first_line(each) for each in body]
        stored: dict[int, set[str]] = collections.defaultdict(set)
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                stored[self.number(node.lineno)].add(node.attr)
            elif isinstance(node, ast.Global):
                stored[self.number(node.lineno)].update(node.names)
        lines = module.source.lines
        self.found: list[tuple[set[str], set[str]]] = []
        for number, (first, each) in enumerate(zip(self._starts, body, strict=True)):
            if isinstance(each, (ast.Import, ast.ImportFrom)):
                self.found.append(_renamed(module, each))
                continue
            words = set(_WORD.findall("\n".join(lines[first - 1 : each.end_lineno])))
            self.found.append((words, {*_defined(each), *stored.get(number, ())}))

    def number(self, line: int) -> int:
        return bisect.bisect_right(self._starts, line) - 1


def _renamed(module: Module, node: ast.Import | ast.ImportFrom) -> tuple[set[str], set[str]]:
    """Returns the names of the project that have another name in a file, and these names."""
    level, name = getattr(node, "level", 0), getattr(node, "module", None) or ""
    is_inside = level or module.project.module_path(module.path, name, 0) is not None
    if isinstance(node, ast.Import) or not is_inside:
        return set(), set()
    aliases = [alias for alias in node.names if alias.asname]
    return {alias.name for alias in aliases}, {str(alias.asname) for alias in aliases}


def _defined(statement: ast.stmt) -> Iterator[str]:
    """Yields the names that a statement gives to others."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield statement.name
    elif isinstance(statement, ast.ClassDef):
        yield statement.name
        for each in statement.body:
            yield from (name for name in _defined(each) if not name.startswith("__"))
    else:
        for part in ast.walk(statement):
            if isinstance(part, ast.alias) and part.asname:
                yield part.asname
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id
            elif isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield part.name
