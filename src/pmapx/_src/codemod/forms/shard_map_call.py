"""``jax.pmap(f, ...)`` becomes ``jax.jit(jax.shard_map(on_one_row(f), mesh=..., ...))``.

Needs a map whose axes can be read, in a program that maps over each of its devices as far as its
words show. Where it does not, the migrated program ends with an error of ``jax.shard_map``, never
with other numbers.
"""

from __future__ import annotations

import re

from pmapx._src.codemod.forms.use import FOR_JIT, Use, spelled
from pmapx._src.codemod.text.editor import Editor

PREFERENCE = 10
# The last argument of jax.shard_map, with its comma and the reason for it.
UNCHECKED = "check_vma=False,  # it reduces its gradients over the axis itself, as under pmap"


def obstacle(use: Use) -> str:
    if use.site.kind != "call":
        return "it is no call"
    if use.around.in_processes:
        return "each process has only its own shards"
    return use.layout if isinstance(use.layout, str) else ""


def functions(use: Use) -> list[str]:
    return [use.known_layout.body]


def write(use: Use, editor: Editor) -> None:
    indent = editor.indent(use.site.whole.line)
    body, options = body_on_a_shard(use, editor, indent)
    specs = use.known_layout.specs()
    mapped = editor.call("jax.shard_map", [body, *specs], indent + editor.step, UNCHECKED)
    replace_call(use, editor, editor.call("jax.jit", [mapped, *spelled(options, FOR_JIT)], indent))


def body_on_a_shard(use: Use, editor: Editor, indent: str) -> tuple[str, dict[str, str]]:
    """Returns the text of the mapped body for a device's shard, and of the options."""
    function, options = use.parts(editor)
    if not re.search(r"\'\'\'|\"\"\"|\\\n", function):
        # It is one step deeper than it was.
        function = function.replace("\n", f"\n{editor.step}")
    layout, deeper = use.known_layout, indent + 2 * editor.step
    args = [function, *layout.axes]
    text = f"{layout.body}({', '.join(args)})"
    if layout.axes and len(deeper) + len(text) >= editor.width:
        text = editor.call(layout.body, args, deeper)
    return text, options


def replace_call(use: Use, editor: Editor, text: str) -> None:
    """Puts a call that has an argument a line in the place of the site, below its comments."""
    step = editor.indent(use.site.whole.line) + editor.step
    notes = "".join(f"{step}{note}\n" for note in use.notes(editor))
    editor.replace(use.site.whole, text.replace("(\n", f"(\n{notes}", 1))
