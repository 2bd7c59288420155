"""``@jax.pmap`` becomes ``@jax.jit`` and ``@jax.shard_map(mesh=mesh, in_specs=..., ...)``.

Needs what ``shard_map_call`` needs. Where the function below cannot be edited, as below another
decorator, a lambda takes it.
"""

from __future__ import annotations

import ast

from pmapx._src.codemod.forms import body_edits, decorators, process_calls, shard_body
from pmapx._src.codemod.forms.shard_map_call import is_wrapped, shard_map, written
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
    if not shard_body.is_edited(use) and shard_body.converts(use):
        body = shard_body.lambda_around(use, "function", editor, indent + editor.hang)
        mapped = f"lambda function: {shard_map(use, body, editor, indent)}"
    elif not is_wrapped(use):
        mapped = written(use, "", editor, indent)
    else:
        mapped = f"lambda function: {shard_map(use, 'function', editor, indent)}"
    if shard_body.is_edited(use):
        body_edits.edit(use, editor)
    texts = [jit, mapped]
    if process_calls.is_at_site(use):
        head, body = process_calls.at_site(use, editor, indent)
        texts.insert(0, f"lambda jitted: lambda {head}: {body}")
    decorators.stack(use, editor, texts, use.notes(editor))
