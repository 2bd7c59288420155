"""The maps of a file in the global form: ``jax.jit`` of ``jax.shard_map``, as it is written."""

from __future__ import annotations

import ast
import dataclasses
import os
from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.source.location import Place

JIT, SHARD_MAP = "jax.jit", "jax.shard_map"


@dataclasses.dataclass(eq=False)
class Candidate:
    """One map.

    Attributes:
      module: its file.
      shard_map: the call of ``jax.shard_map``.
      jit: the call or decorator around it, as ``jax.jit`` or ``functools.partial(jax.jit, ...)``.
      function: the mapped function as an expression, or its definition below the decorators.
      obstacle: why it cannot be written as a jitted function, if so.
    """

    module: Module
    shard_map: ast.Call
    jit: ast.expr
    function: ast.expr | ast.FunctionDef
    obstacle: str = ""

    @property
    def place(self) -> Place:
        return self.module.place(self.jit)

    @property
    def name(self) -> str:
        """The name of the mapped function."""
        function = self.function
        if isinstance(function, ast.Lambda):
            return "<lambda>"
        return function.name if isinstance(function, ast.FunctionDef) else ast.unparse(function)

    def option(self, name: str) -> ast.expr | None:
        """Returns an option of ``jax.shard_map``."""
        found = [each.value for each in self.shard_map.keywords if each.arg == name]
        return found[0] if found else None

    def covers(self, file: str, line: int) -> bool:
        """Whether a line of a file is one of the map's own expression."""
        nodes = [self.jit, self.shard_map]
        return file == os.path.realpath(self.module.path) and any(
            node.lineno <= line <= (node.end_lineno or node.lineno) for node in nodes
        )


def candidates(module: Module) -> Iterator[Candidate]:
    """Yields the maps of a file."""
    for node in ast.walk(module.source.tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != SHARD_MAP:
            continue
        parent = module.parent(node)
        if isinstance(parent, ast.FunctionDef) and node in parent.decorator_list:
            yield _decorator(module, node, parent)
        elif (
            isinstance(parent, ast.Call)
            and _is_jit(parent.func)
            and [node] == parent.args
            and node.args
        ):
            yield Candidate(module, node, parent, node.args[0])
        else:
            yield _other(module, node)


def _decorator(module: Module, node: ast.Call, function: ast.FunctionDef) -> Candidate:
    above = function.decorator_list[: function.decorator_list.index(node)]
    jit = above[-1] if above else node
    is_partial = isinstance(jit, ast.Call) and bool(jit.args) and _is_jit(jit.args[0])
    why = "another decorator is below the map" if function.decorator_list[-1] is not node else ""
    if not (_is_jit(jit) or is_partial):
        why = "it is not jax.jit of the map alone"
    return Candidate(module, node, jit, function, why)


def _other(module: Module, node: ast.Call) -> Candidate:
    """A map in another form, as one that a lambda makes when it is traced."""
    mesh = next((each.value for each in node.keywords if each.arg == "mesh"), None)
    is_late = isinstance(mesh, ast.Call) and any(
        isinstance(each, ast.Lambda) for each in module.functions_around(node)
    )
    why = "its mesh is made while it is traced" if is_late else "it is not jax.jit of the map alone"
    return Candidate(module, node, node, node.args[0] if node.args else node.func, why)


def _is_jit(node: ast.expr) -> bool:
    return ast.unparse(node) == JIT
