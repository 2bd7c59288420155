"""Calls that put arrays on all devices, in plain JAX: replicated, or stacked over the mesh.

``jax.device_put_replicated`` and ``jax.device_put_sharded`` were removed. Flax's ``replicate`` has a
mesh of its own, so that a step would be compiled for what it is given first and again for what it
returns.
"""

from __future__ import annotations

import ast
import re

from pmapx._src.analysis.module import Module
from pmapx._src.codemod.text.call_tokens import arguments
from pmapx._src.codemod.text.editor import Editor

STACKED = {
    "jax.device_put_replicated": "device_put_replicated",
    "flax.jax_utils.replicate": "device_put_replicated",
    "jax.device_put_sharded": "device_put_sharded",
}


def obstacle(module: Module, node: ast.AST, name: str) -> str:
    """Returns why a use of such a function is not a call that can be written out."""
    call = module.parent(node)
    if not isinstance(call, ast.Call) or call.func is not node:
        return "it is not called"
    if any(isinstance(arg, ast.Starred) for arg in call.args) or len(call.args) > 2:
        return "its arguments are unpacked"
    devices = _devices(call)
    if devices is None:
        return "" if name == "flax.jax_utils.replicate" and call.args else "it has no devices"
    found = module.facts.results.get(devices, frozenset())
    is_all = ast.unparse(devices) in ("jax.devices()", "jax.local_devices()")
    return "" if is_all or found & {"jax.devices", "jax.local_devices"} else "its devices may be some"


def _devices(call: ast.Call) -> ast.expr | None:
    given = [*call.args[1:], *(k.value for k in call.keywords if k.arg == "devices")]
    return given[0] if given else None


def write(
    module: Module, node: ast.AST, name: str, mesh: str, axis: str, numpy: str, editor: Editor
) -> None:
    """Writes the call that stacks copies, or shards, over the mesh."""
    call = module.parent(node)
    assert isinstance(call, ast.Call)
    given = arguments(editor.source, call)
    first = next(place for keyword, place in given if keyword in (None, "x", "tree", "shards"))
    text = editor.text(first)
    if STACKED[name] == "device_put_sharded":
        tree = f"jax.tree.map(lambda *x: {numpy}.stack(x), *{_atom(text)})"
    else:
        count = f"{mesh}.size" if mesh.isidentifier() else "jax.device_count()"
        tree = f"jax.tree.map(lambda x: {numpy}.stack([x] * {count}), {text})"
    sharding = f"jax.NamedSharding({mesh}, jax.P({axis}))"
    _put(module, call, tree, sharding, editor)


def write_replicated(module: Module, call: ast.Call, mesh: str, editor: Editor) -> None:
    """Writes the call that replicates a tree over the mesh."""
    tree = editor.text(arguments(editor.source, call)[0][1])
    _put(module, call, tree, f"jax.NamedSharding({mesh}, jax.P())", editor)


def _put(module: Module, call: ast.Call, tree: str, sharding: str, editor: Editor) -> None:
    place = module.place(call)
    used = place.column + len(editor.rest_of_line(place))
    indent = editor.indent(place.line)
    editor.replace(place, editor.folded_call("jax.device_put", [tree, sharding], indent, used))


def _atom(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+(\(.*\))?|\[.*\]", text, re.DOTALL) else f"({text})"
