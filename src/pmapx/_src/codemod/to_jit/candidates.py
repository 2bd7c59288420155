"""The maps of a file in the global form: ``jax.jit`` of ``jax.shard_map``, as it is written."""

from __future__ import annotations

import ast
import dataclasses
import os
from collections.abc import Iterator, Sequence

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
      wrapper: the lambda that makes the map when it is traced, if there is one.
      names: what that lambda passes to the map.
    """

    module: Module
    shard_map: ast.Call
    jit: ast.expr
    function: ast.expr | ast.FunctionDef
    obstacle: str = ""
    wrapper: ast.Lambda | None = None
    names: Sequence[str] = ()

    @property
    def is_late(self) -> bool:
        """Whether its mesh is made when it is traced."""
        return self.wrapper is not None and not isinstance(self.option("mesh"), ast.Name)

    @property
    def place(self) -> Place:
        return self.module.place(self.jit)

    @property
    def name(self) -> str:
        """The name of the mapped function, also if a partial or a lambda is around it."""
        function = self.function
        if isinstance(function, ast.FunctionDef):
            return function.name
        while isinstance(function, ast.Call | ast.Lambda | ast.Subscript):
            if isinstance(function, ast.Lambda):
                function = function.body
            elif isinstance(function, ast.Subscript):
                function = function.value
            elif ast.unparse(function.func) == "jax.tree.map":
                function = function.args[-1]
            elif ast.unparse(function.func).endswith("partial") and function.args:
                function = function.args[0]
            else:
                function = function.func
        text = ast.unparse(function)
        is_own = isinstance(function, ast.Name | ast.Attribute)
        return text if is_own and not text.startswith(("jax.", "jnp.", "lax.")) else "<lambda>"

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


def _decorator(module: Module, node: ast.expr, function: ast.FunctionDef) -> Candidate:
    above = function.decorator_list[: function.decorator_list.index(node)]
    jit = above[-1] if above else node
    is_partial = isinstance(jit, ast.Call) and bool(jit.args) and _is_jit(jit.args[0])
    why = "a decorator is below the shard_map" if function.decorator_list[-1] is not node else ""
    if not (_is_jit(jit) or is_partial):
        why = "its jax.jit wraps more than the shard_map"
    mapped = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    return Candidate(module, mapped, jit, function, why)


def _other(module: Module, node: ast.Call) -> Candidate:
    """A map that a lambda makes when it is traced, as for a late mesh or static arguments."""
    call = module.parent(node)
    outer = module.parent(call) if isinstance(call, ast.Call) and call.func is node else None
    other = Candidate(module, node, node, node.func, "its jax.jit wraps more than the shard_map")
    if not isinstance(outer, ast.Lambda) or not node.args:
        return other
    assert isinstance(call, ast.Call)
    names = [ast.unparse(arg) for arg in call.args]
    function = _wrapped(node.args[0], outer)
    above = module.parent(outer)
    if isinstance(above, ast.Call) and _is_jit(above.func) and above.args == [outer]:
        if function is None:
            return dataclasses.replace(other, jit=above)
        return Candidate(module, node, above, function, wrapper=outer, names=names)
    definition = module.parent(above) if isinstance(above, ast.Lambda) else None
    if isinstance(above, ast.Lambda) and isinstance(definition, ast.FunctionDef):
        taken = [each.arg for each in above.args.args]
        found = _decorator(module, above, definition)
        if function is None or [ast.unparse(function)] != taken:
            return dataclasses.replace(found, shard_map=node, obstacle=other.obstacle)
        return dataclasses.replace(found, shard_map=node, wrapper=above, names=names)
    return other


def _wrapped(inner: ast.expr, outer: ast.Lambda) -> ast.expr | None:
    """Returns the function that a lambda maps, if it passes on what it takes."""
    if isinstance(inner, ast.Call) and _binds_static(inner, outer):
        return inner.args[0]
    if not isinstance(inner, ast.Lambda):
        return inner
    if outer.args.vararg is not None or not isinstance(inner.body, ast.Call):
        return inner
    taken = [each.arg for each in outer.args.args]
    call = inner.body
    if [ast.unparse(arg) for arg in call.args] == taken and not call.keywords:
        return call.func
    return inner if [each.arg for each in inner.args.args] == taken else None


def _binds_static(call: ast.Call, outer: ast.Lambda) -> bool:
    """Returns whether ``functools.partial(f, size=size)`` binds what a lambda takes as ``size``."""
    taken = {each.arg for each in outer.args.args}
    return (
        ast.unparse(call.func) == "functools.partial"
        and len(call.args) == 1
        and bool(call.keywords)
        and all(each.arg in taken and ast.unparse(each.value) == each.arg for each in call.keywords)
    )


def _is_jit(node: ast.expr) -> bool:
    return ast.unparse(node) == JIT
