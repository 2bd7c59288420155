"""``@jax.pmap`` becomes ``@jax.jit`` and ``@jax.shard_map(mesh=mesh, in_specs=..., ...)``.

Needs what ``shard_map_call`` needs. Where the function below cannot be edited, as below another
decorator, a lambda takes it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from pmapx._src.codemod.forms import body_edits, host_local, process_calls, shard_body
from pmapx._src.codemod.forms.lambda_around import lambda_around
from pmapx._src.codemod.forms.shard_map_call import is_wrapped, shard_map, written
from pmapx._src.codemod.forms.use import FOR_JIT, Use, spelled
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.source.rewriting.edits import between

PREFERENCE = 20
_BEFORE = re.compile(r"\s*@[\s(]*")


def obstacle(use: Use) -> str:
    if isinstance(use.layout, str):
        return use.layout
    return _obstacle_to_stack(use) or shard_body.obstacle(use) or process_calls.obstacle(use)


def functions(use: Use) -> list[str]:
    return [use.conversion] if use.conversion in (host_local.NAME, host_local.LATER) else []


def write(use: Use, editor: Editor) -> None:
    indent = editor.indent(use.site.place.line)
    if use.conversion and isinstance(use.expression, ast.Call):
        partial = editor.text(editor.source.place(use.expression.func))
        given = [use.conversion, *host_local.options(use, editor, indent + editor.hang)]
        given += spelled(use.parts(editor)[1], FOR_JIT)
        if shard_body.is_edited(use):
            body_edits.edit(use, editor)
        text = editor.folded_call(partial, given, indent, len(indent) + 1)
        _stack(use, editor, [text], [note for note, _ in use.notes(editor)])
        return
    jit = "jax.jit"
    if isinstance(use.expression, ast.Call):
        partial = editor.text(editor.source.place(use.expression.func))
        outer = spelled(use.parts(editor)[1], FOR_JIT)
        if outer:
            jit = editor.folded_call(partial, [jit, *outer], indent, len(indent) + 1)
    if not shard_body.is_edited(use) and shard_body.converts(use):
        body = lambda_around(use, "function", editor, indent + editor.hang)
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
    _stack(use, editor, texts, [note for note, _ in use.notes(editor)])


def _obstacle_to_stack(use: Use) -> str:
    """Returns why a site cannot become several decorators."""
    if use.site.kind != "decorator":
        return "it is not a decorator"
    line = use.module.source.line(use.site.place.line)
    if not _BEFORE.fullmatch(line[: use.site.place.column]):
        return "its @ is on another line"
    return "" if use.has_known_arguments else "its options are not all written at the site"


def _stack(use: Use, editor: Editor, texts: Sequence[str], notes: Sequence[str]) -> None:
    """Writes decorators one below another: the last has what is beside the one that was there."""
    indent = editor.indent(use.site.place.line)
    *first, last = texts
    above = [*notes, *(f"@{text}" for text in first)]
    text = "".join(f"{each}\n{indent}" for each in above)
    # In the place of the @: what is inserted before it stays before it.
    at = (use.site.place.line, len(indent))
    editor.edits.append(between(at, (at[0], at[1] + 1), f"{text}@"))
    editor.replace(use.site.place, last)
