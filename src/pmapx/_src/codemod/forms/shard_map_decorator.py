"""``@jax.pmap`` becomes ``@jax.jit``, ``@jax.shard_map(mesh=..., ...)`` and ``@on_one_row``.

Needs what ``shard_map_call`` needs.
"""

from __future__ import annotations

import ast

from pmapx._src.codemod.forms import decorators
from pmapx._src.codemod.forms.shard_map_call import UNCHECKED
from pmapx._src.codemod.forms.use import FOR_JIT, Use, spelled
from pmapx._src.codemod.text.editor import Editor

PREFERENCE = 20


def obstacle(use: Use) -> str:
    if use.around.in_processes:
        return "each process has only its own shards"
    return decorators.obstacle(use) or (use.layout if isinstance(use.layout, str) else "")


def functions(use: Use) -> list[str]:
    return [use.known_layout.body]


def write(use: Use, editor: Editor) -> None:
    layout, indent = use.known_layout, editor.indent(use.site.whole.line)
    jit, body, specs = "jax.jit", layout.body, layout.specs()
    if isinstance(use.whole, ast.Call):
        partial = editor.text(editor.source.place(use.whole.func))
        outer = spelled(use.parts(editor)[1], FOR_JIT)
        if outer:
            jit = f"{partial}({', '.join([jit, *outer])})"
        if layout.axes:
            body = f"{partial}({', '.join([body, *layout.axes])})"
        mapped = editor.call(partial, ["jax.shard_map", *specs], indent, UNCHECKED)
    else:
        mapped = editor.call("jax.shard_map", specs, indent, UNCHECKED)
    decorators.stack(use, editor, [jit, mapped, body], use.notes(editor))
