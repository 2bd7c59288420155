"""``jax.pmap(f, ...)`` in a multi-process program becomes ``map_own_rows(on_one_row(f), ...)``.

Needs what ``shard_map_call`` needs; each process passes its host-local shards.
"""

from __future__ import annotations

from pmapx._src.codemod.forms.shard_map_call import body_on_a_shard, replace_call
from pmapx._src.codemod.forms.use import FOR_JIT, Use, spelled
from pmapx._src.codemod.text.editor import Editor

PREFERENCE = 30


def obstacle(use: Use) -> str:
    if use.site.kind != "call":
        return "it is no call"
    if not use.around.in_processes:
        return "the program is not a multi-process one"
    return use.layout if isinstance(use.layout, str) else ""


def functions(use: Use) -> list[str]:
    return [use.known_layout.body, "map_own_rows"]


def write(use: Use, editor: Editor) -> None:
    indent = editor.indent(use.site.whole.line)
    body, options = body_on_a_shard(use, editor, indent)
    args = [body, *use.known_layout.specs(), *spelled(options, FOR_JIT)]
    replace_call(use, editor, editor.call("map_own_rows", args, indent))
