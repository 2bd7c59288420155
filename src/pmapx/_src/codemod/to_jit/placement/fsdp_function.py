"""The function that shards state as FSDP does, written once in a program and imported elsewhere."""

from __future__ import annotations

import ast
import builtins
import os
from collections.abc import Mapping, Sequence

from pmapx._src.analysis.definitions import bound_or_imported
from pmapx._src.audit.what_if import SMALLEST
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.to_jit.placement.version import CannotEditError
from pmapx._src.source.files import Source

_TEXT = '''\
def {name}(tree):
    """FSDP: shards each large array along its largest divisible dimension."""
{mesh}
    def sharding(x):
        shape = jax.numpy.shape(x)
        divisible = [size for size in shape if size % {mesh_name}.size == 0]
        if not divisible or jax.numpy.size(x) < {smallest}:
            return jax.NamedSharding({mesh_name}, jax.P())
        dimension = shape.index(max(divisible))
        return jax.NamedSharding({mesh_name}, jax.P(*[None] * dimension, {axis}))

    return jax.tree.map(sharding, tree)
'''
_MAKERS = ("jax.make_mesh", "jax.sharding.Mesh", "jax.Mesh")
_NAMES = ("fsdp_shardings", "fsdp_sharding_tree", "state_shardings")


class CannotShardError(CannotEditError):
    """Why the state stays replicated."""


class FsdpFunction:
    """The function, the file that has it, and how others call it."""

    def __init__(self, sources: Mapping[str, Source], users: Sequence[str], axis: str) -> None:
        """``users`` are the files that call it.

        Raises:
          CannotShardError: if no file can have it.
        """
        self._sources, self._axis = sources, axis
        trees = [source.tree for source in sources.values()]
        bound = {name for tree in trees for name in bound_or_imported(ast.walk(tree))}
        self.name = next((name for name in _NAMES if name not in bound), _NAMES[0] + "_")
        for home in users:
            others = {path: _imported(sources[path], home) for path in users if path != home}
            if all(others.values()):
                self._home, self._others = home, others
                return
        names = " and ".join(sorted(os.path.basename(path) for path in users))
        raise CannotShardError(f"{names} would share a function, and neither imports the other")

    def called_in(self, path: str) -> str:
        """Returns how a file calls it."""
        if path == self._home:
            return self.name
        owner = self._others[path]
        return f"{owner}.{self.name}" if isinstance(owner, str) else self.name

    def write(self, editors: Mapping[str, Editor]) -> None:
        """Adds it to its file, and imports of it."""
        editor, source = editors[self._home], self._sources[self._home]
        made = _top_level_mesh(source.tree)
        mesh, name = "", "mesh"
        if made is None:
            text = self._mesh_text(source)
            mesh = f"    mesh = {text}\n"
        else:
            name = ast.unparse(made.targets[0])
        text = _TEXT.format(
            name=self.name,
            mesh=mesh,
            mesh_name=name,
            axis=editor.quoted(self._axis),
            smallest=SMALLEST,
        )
        text = text.replace("    ", editor.step)
        if made is not None:
            self._below(editor, made, text)
        else:
            first = _below_imports(source.tree)
            editor.insert(editor.line_above(first), 0, f"{text}\n\n")
        for path, owner in self._others.items():
            if isinstance(owner, ast.ImportFrom):
                module = "." * owner.level + (owner.module or "")
                line = f"from {module} import {self.name}\n"
                editors[path].insert((owner.end_lineno or owner.lineno) + 1, 0, line)

    def _below(self, editor: Editor, made: ast.Assign, text: str) -> None:
        """Adds the function below a mesh, and the shardings that are named after it."""
        body = self._sources[self._home].tree.body
        at = body.index(made) + 1
        while at < len(body) and _is_sharding(body[at]):
            at += 1
        if at == len(body):
            editor.insert((body[-1].end_lineno or 0) + 1, 0, f"\n\n{text}")
            return
        line = (body[at - 1].end_lineno or 0) + 1
        following = editor.line_above(body[at])
        blank = following - line
        editor.insert(line, 0, f"\n\n{text}" + "\n" * max(2 - blank, 0))

    def _mesh_text(self, source: Source) -> str:
        """Returns how a mesh is made, of names that a file has."""
        others = [each for each in self._sources.values() if each is not source]
        known = {*bound_or_imported(ast.walk(source.tree)), *dir(builtins)}
        for each in (source, *others):
            for node in ast.walk(each.tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in _MAKERS:
                    own = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
                    used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                    if used <= known | own:
                        editor = Editor(source)
                        args = [_segment(each, arg) for arg in node.args]
                        args += [f"{k.arg}={_segment(each, k.value)}" for k in node.keywords]
                        return editor.folded_call(
                            ast.unparse(node.func), args, "    ", len("    mesh = ")
                        )
        raise CannotShardError("its file creates no mesh")


def _segment(source: Source, node: ast.expr) -> str:
    return " ".join(source.segment(source.place(node)).split())


def _top_level_mesh(tree: ast.Module) -> ast.Assign | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            is_made = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in _MAKERS
            if is_made and isinstance(node.targets[0], ast.Name):
                return node
    return None


def _is_sharding(node: ast.stmt) -> bool:
    value = getattr(node, "value", None)
    is_call = isinstance(node, ast.Assign) and isinstance(value, ast.Call)
    return is_call and ast.unparse(value.func).endswith("NamedSharding")  # type: ignore[union-attr]


def _below_imports(tree: ast.Module) -> ast.stmt:
    """Returns the first function or class, or what follows the imports of a file without one."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    others = (ast.Import, ast.ImportFrom, ast.Expr)
    found: list[ast.stmt] = [node for node in tree.body if isinstance(node, kinds)]
    found += [node for node in tree.body if not isinstance(node, others)]
    return [*found, tree.body[-1]][0]


def _imported(source: Source, home: str) -> str | ast.ImportFrom | None:
    """Returns the name that a file has another by, or its import of names from it."""
    stem = os.path.splitext(os.path.basename(home))[0]
    if stem == "__init__":
        stem = os.path.basename(os.path.dirname(home))
    found: str | ast.ImportFrom | None = None
    for node in source.tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.rpartition(".")[2] == stem:
                    return alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == stem:
                    return alias.asname or alias.name
            if (node.module or "").rpartition(".")[2] == stem:
                found = node
    return found
