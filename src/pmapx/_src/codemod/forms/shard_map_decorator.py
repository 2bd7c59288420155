"""``@jax.pmap`` becomes ``@jax.jit`` and ``@jax.shard_map(mesh=mesh, in_specs=..., ...)``.

Needs what ``shard_map_call`` needs, and a body that can be edited.
"""

from __future__ import annotations

import ast

from pmapx._src.codemod.forms import decorators, process_calls, shard_body
from pmapx._src.codemod.forms.shard_map_call import shard_map, written
from pmapx._src.codemod.forms.use import FOR_JIT, Use, spelled
from pmapx._src.codemod.text.editor import Editor

PREFERENCE = 20


def obstacle(use: Use) -> str:
    if isinstance(use.layout, str):
        return use.layout
    return decorators.obstacle(use) or shard_body.obstacle(use) or process_calls.obstacle(use)


def functions(use: Use) -> list[str]:
    return []


def write(use: Use, editor: Editor) -> None:
    indent = editor.indent(use.site.whole.line)
    jit = "jax.jit"
    if isinstance(use.whole, ast.Call):
        partial = editor.text(editor.source.place(use.whole.func))
        outer = spelled(use.parts(editor)[1], FOR_JIT)
        if outer:
            jit = editor.folded_call(partial, [jit, *outer], indent, len(indent) + 1)
    if use.known_layout.static or use.is_called_by_keyword or use.is_lazy:
        mapped = f"lambda function: {shard_map(use, 'function', editor, indent)}"
    else:
        mapped = written(use, "", editor, indent)
    shard_body.edit(use, editor)
    decorators.stack(use, editor, [jit, mapped], use.notes(editor))
