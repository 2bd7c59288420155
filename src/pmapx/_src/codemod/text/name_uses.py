"""What a file binds and uses by name, from one walk over its tree."""

from __future__ import annotations

import ast
import dataclasses
import weakref

from pmapx._src.analysis.module import Module


@dataclasses.dataclass(slots=True, eq=False)
class NameUses:
    """Bindings and all uses of each name, in whatever scope; a string may name one too."""

    bound: dict[str, list[ast.AST]] = dataclasses.field(default_factory=dict)
    names: dict[str, list[ast.Name]] = dataclasses.field(default_factory=dict)
    imports: list[ast.ImportFrom] = dataclasses.field(default_factory=list)
    strings: set[str] = dataclasses.field(default_factory=set)
    # Attributes that are read.
    attributes: set[str] = dataclasses.field(default_factory=set)

    def add(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            self.names.setdefault(node.id, []).append(node)
            if not isinstance(node.ctx, ast.Load):
                self.bound.setdefault(node.id, []).append(node)
        elif isinstance(node, ast.arg):
            self.bound.setdefault(node.arg, []).append(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.bound.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.alias):
            self.bound.setdefault(node.asname or node.name, []).append(node)
        elif isinstance(node, ast.ImportFrom):
            self.imports.append(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            self.attributes.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.strings.add(node.value)


_KNOWN: weakref.WeakKeyDictionary[Module, NameUses] = weakref.WeakKeyDictionary()


def name_uses(module: Module) -> NameUses:
    """Returns the names of a file."""
    found = _KNOWN.get(module)
    if found is None:
        found = _KNOWN[module] = NameUses()
        for node in module.nodes:
            found.add(node)
    return found
