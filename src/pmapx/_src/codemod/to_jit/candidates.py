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
            yield from _decorator(module, node, parent)
        elif isinstance(parent, ast.Call) and _is_jit(parent.func) and parent.args == [node]:
            if node.args:
                yield Candidate(module, node, parent, node.args[0])
        else:
            yield from _lambda(module, node)


def _decorator(module: Module, node: ast.Call, function: ast.FunctionDef) -> Iterator[Candidate]:
    above = function.decorator_list[: function.decorator_list.index(node)]
    below = function.decorator_list[len(above) + 1 :]
    if not above:
        return
    jit = above[-1]
    is_partial = isinstance(jit, ast.Call) and bool(jit.args) and _is_jit(jit.args[0])
    if not (_is_jit(jit) or is_partial):
        return
    why = "another decorator is below the map" if below else ""
    yield Candidate(module, node, jit, function, why)


def _lambda(module: Module, node: ast.Call) -> Iterator[Candidate]:
    """A map that a lambda makes when it is traced, for static arguments or a late mesh."""
    call = module.parent(node)
    outer = module.parent(call) if isinstance(call, ast.Call) and call.func is node else None
    jit = module.parent(outer) if isinstance(outer, ast.Lambda) else None
    if isinstance(jit, ast.Call) and _is_jit(jit.func) and jit.args == [outer] and node.args:
        why = "its mesh is made while it is traced, or it has static arguments"
        yield Candidate(module, node, jit, node.args[0], why)


def _is_jit(node: ast.expr) -> bool:
    return ast.unparse(node) == JIT
