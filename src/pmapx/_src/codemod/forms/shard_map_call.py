"""``jax.pmap(f, ...)`` becomes ``jax.jit(jax.shard_map(f, mesh=mesh, in_specs=..., ...))``.

Needs a map whose axes can be read, in a program that maps over each of its devices as far as its
words show. Where it maps over fewer, the migrated program ends with an error of ``jax.shard_map``.
"""

from __future__ import annotations

import ast
import re

from pmapx._src.codemod.forms import body_edits, process_calls, shard_body
from pmapx._src.codemod.forms.use import FOR_JIT, Use, spelled
from pmapx._src.codemod.text.editor import Editor

PREFERENCE = 10
# Why the check is off, where the mapped function takes gradients itself.
GRADIENTS = "gradients stay per device until they are reduced, as under pmap"


def obstacle(use: Use) -> str:
    if use.site.kind not in ("call", "wrapper"):
        return "it is no call"
    if isinstance(use.layout, str):
        return use.layout
    return shard_body.obstacle(use) or process_calls.obstacle(use)


def functions(use: Use) -> list[str]:
    return []


def write(use: Use, editor: Editor) -> None:
    indent = editor.indent(use.site.whole.line)
    function, options = use.parts(editor)
    outer = spelled(options, FOR_JIT)
    is_in_jit = not outer and _is_in_jit(use)
    own = indent if is_in_jit else indent + editor.step
    mapped = shard_map(use, mapped_body(use, function, editor, own + editor.step), editor, own)
    if is_in_jit:
        replace_call(use, editor, mapped)
        return
    used = use.site.whole.column + len(editor.rest_of_line(use.site.whole))
    if use.notes(editor) or used + len(f"jax.jit({', '.join([mapped, *outer])})") > editor.width:
        text = editor.call("jax.jit", [mapped, *outer], indent)
    else:
        text = f"jax.jit({', '.join([mapped, *outer])})"
    replace_call(use, editor, text)


def _is_in_jit(use: Use) -> bool:
    """Returns whether the site is written as the function of ``jax.jit``, which does for both."""
    call = use.module.parent(use.whole)
    if not isinstance(call, ast.Call) or use.whole not in call.args[:1]:
        return False
    made = use.module.facts.calls.get(call)
    return made is not None and "jax.jit" in made.names


def mapped_body(use: Use, function: str, editor: Editor, indent: str) -> str:
    """Returns the text of what is given to shard_map, or to the lambda around it."""
    if not re.search(r"\'\'\'|\"\"\"|\\\n", function):
        # It is one step deeper than it was.
        function = function.replace("\n", f"\n{editor.step}")
    if shard_body.is_edited(use):
        body_edits.edit(use, editor)
        return function
    if not shard_body.converts(use):
        return function
    return shard_body.lambda_around(use, function, editor, indent)


def shard_map(use: Use, body: str, editor: Editor, indent: str) -> str:
    """Returns ``jax.shard_map(...)``, in a lambda where it cannot stand alone.

    Static arguments and keywords do not go to ``jax.shard_map``, and a mesh that would start JAX's
    backend at import is made when the function is traced.
    """
    layout = use.known_layout
    names = None if use.names is None else shard_body.argument_names(use)
    is_wrapped = bool(layout.static) or use.is_called_by_keyword or use.is_lazy
    if not is_wrapped:
        return written(use, body, editor, indent)
    if names is None or (layout.is_leading and not use.is_called_by_keyword):
        head = given = "*args"
    else:
        # Calls by keyword use the names of the function.
        names = use.names if use.is_called_by_keyword else names
        assert names is not None
        head = ", ".join(names)
        given = ", ".join(name for i, name in enumerate(names) if i not in layout.static)
        if layout.static and (shard_body.is_edited(use) or not shard_body.converts(use)):
            body = shard_body.static_bound(use, body, names)
    return f"lambda {head}: {written(use, body, editor, indent)}({given})"


def written(use: Use, body: str, editor: Editor, indent: str) -> str:
    layout, count = use.known_layout, None if use.names is None else len(use.names)
    specs = [
        f"mesh={use.mesh}",
        f"in_specs={layout.in_specs(use.axis, count)}",
        f"out_specs={layout.out_specs(use.axis)}",
    ]
    args = [*([body] if body else []), *specs]
    text = editor.folded_call("jax.shard_map", [*args, "check_vma=False"], indent, len(indent) + 1)
    is_long = text.endswith(f"check_vma=False,\n{indent})")
    if is_long and use.function is not None and use.function.takes_gradients:
        last = f"check_vma=False,  # {GRADIENTS}"
        if len(indent + editor.step) + len(last) <= editor.width:
            return editor.call("jax.shard_map", args, indent, last)
    return text


def replace_call(use: Use, editor: Editor, text: str) -> None:
    """Puts a call in the place of the site, below its comments."""
    step = editor.indent(use.site.whole.line) + editor.step
    notes = "".join(f"{step}{note}\n" for note in use.notes(editor))
    editor.replace(use.site.whole, text.replace("(\n", f"(\n{notes}", 1))
