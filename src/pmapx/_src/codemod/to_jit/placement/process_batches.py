"""Batches of multi-process programs: global arrays of the data that each process has."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from pmapx._src.codemod.text import outer_calls
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.to_jit.decisions import Decision
from pmapx._src.codemod.to_jit.placement.version import CannotEditError, Holds, Version
from pmapx._src.source.files import Source
from pmapx._src.source.rewriting.edits import Edit

_OLD = "multihost_utils.host_local_array_to_global_array"
_NEW = "jax.make_array_from_process_local_data"
_IMPORT = "from jax.experimental import multihost_utils"
_NAMES = ("sharded", "batch_sharding", "over_batch")
_NAMES_OF_REPLICATED = ("replicated", "replicated_sharding")
_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


def placed(version: Version, chosen: Sequence[Decision], holds: Holds) -> Version:
    """Returns a version whose batches `jax.make_array_from_process_local_data` places.

    It is the same one if there are none, or a step does not hold then.
    """
    edits = {path: _edits(source) for path, source in version.sources.items()}
    edits = {path: found for path, found in edits.items() if found}
    if not edits:
        return version
    before = [each.compared for each in chosen]
    try:
        new = version.edited(edits)
    except CannotEditError:
        return version
    if holds(chosen, new):
        return new
    for each, compared in zip(chosen, before, strict=True):
        each.reasons, each.compared = [], compared
    return version


def _edits(source: Source) -> list[Edit]:
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    found = [each for each in calls if ast.unparse(each.func) == _OLD and len(each.args) == 3]
    if not found:
        return []
    editor, named = Editor(source), _Named(source)
    for call in sorted(found, key=lambda call: (call.lineno, call.col_offset), reverse=True):
        place = source.place(call)
        batch, mesh, spec = (editor.text(source.place(each)) for each in call.args)
        sharding = named.name(call, mesh, spec) or f"jax.NamedSharding({mesh}, {spec})"
        indent = editor.indent(place.line)
        used = place.column + len(editor.rest_of_line(place))
        editor.replace(place, editor.folded_call(_NEW, [sharding, batch], indent, used))
    for call in calls:
        given = [getattr(each, "value", each) for each in (*call.args, *call.keywords)]
        if any(each in found for each in given):
            outer_calls.refold(editor, call)
    named.write(editor)
    uses = [n for n in ast.walk(source.tree) if getattr(n, "id", "") == "multihost_utils"]
    for node in source.tree.body:
        if ast.unparse(node) == _IMPORT and len(uses) == len(found):
            editor.edits.append(Edit(node.lineno, 0, (node.end_lineno or node.lineno) + 1, 0))
    return editor.edits


class _Named:
    """The shardings of a file that are named below the statements that make their meshes."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._taken = {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)}
        self._made: dict[tuple[ast.Assign, str], str] = {}

    def name(self, call: ast.Call, mesh: str, spec: str) -> str:
        """Returns the name of a sharding, empty if its mesh is not made by a statement above."""
        for scope in reversed(list(_around(self._source.tree, call))):
            for node in scope.body:
                is_mesh = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == mesh
                if is_mesh and node.lineno < call.lineno:
                    assert isinstance(node, ast.Assign)
                    known = _named_already(scope, call, f"jax.NamedSharding({mesh}, {spec})")
                    if known:
                        return known
                    if (node, spec) not in self._made:
                        names = _NAMES_OF_REPLICATED if spec.endswith("P()") else _NAMES
                        free = [name for name in names if name not in self._taken]
                        if not free:
                            return ""
                        self._taken.add(free[0])
                        self._made[node, spec] = free[0]
                    return self._made[node, spec]
        return ""

    def write(self, editor: Editor) -> None:
        for (statement, spec), name in self._made.items():
            indent, mesh = editor.indent(statement.lineno), ast.unparse(statement.targets[0])
            line = f"{indent}{name} = jax.NamedSharding({mesh}, {spec})\n"
            editor.insert((statement.end_lineno or statement.lineno) + 1, 0, line)


def _named_already(scope: _Scope, call: ast.Call, sharding: str) -> str:
    """Returns the name that a statement above a call gives to a sharding."""
    wanted = ast.unparse(ast.parse(sharding))
    for node in scope.body:
        is_above = isinstance(node, ast.Assign) and node.lineno < call.lineno
        if not is_above or ast.unparse(node.value) != wanted:  # type: ignore[attr-defined]
            continue
        [target, *_] = node.targets  # type: ignore[attr-defined]
        if isinstance(target, ast.Name):
            return target.id
    return ""


def _around(tree: ast.Module, node: ast.AST) -> Iterator[_Scope]:
    """Yields the scopes around a node, the outer ones first."""
    for scope in ast.walk(tree):
        if isinstance(scope, _Scope) and any(each is node for each in ast.walk(scope)):
            yield scope
