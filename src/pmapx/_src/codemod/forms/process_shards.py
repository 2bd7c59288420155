"""``jax.pmap(f, ...)`` in a multi-process program becomes ``map_own_rows(f, ...)``.

Needs what ``shard_map_call`` needs; each process passes its host-local shards.
"""

from __future__ import annotations

from pmapx._src.codemod.forms import shard_body
from pmapx._src.codemod.forms.shard_map_call import mapped_body, replace_call
from pmapx._src.codemod.forms.use import FOR_JIT, Use, spelled
from pmapx._src.codemod.text.editor import Editor

PREFERENCE = 30


def obstacle(use: Use) -> str:
    if use.site.kind != "call":
        return "it is no call"
    if not use.around.in_processes:
        return "the program is not a multi-process one"
    if isinstance(use.layout, str):
        return use.layout
    if not use.module.functions_around(use.node):
        return "it would start JAX's backend when the module is imported"
    if use.known_layout.static or use.is_called_by_keyword:
        return "it has static arguments or keywords"
    return shard_body.obstacle(use)


def functions(use: Use) -> list[str]:
    return ["map_own_rows"]


def write(use: Use, editor: Editor) -> None:
    indent = editor.indent(use.site.whole.line)
    layout, count = use.known_layout, None if use.names is None else len(use.names)
    function, options = use.parts(editor)
    args = [
        mapped_body(use, function, editor, indent + editor.step),
        f"mesh=jax.sharding.Mesh({layout.devices or 'jax.devices()'}, ({use.axis},))",
        f"in_specs={layout.in_specs(use.axis, count)}",
        f"out_specs={layout.out_specs(use.axis)}",
        *spelled(options, FOR_JIT),
    ]
    replace_call(use, editor, editor.call("map_own_rows", args, indent))
