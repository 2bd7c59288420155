"""``jax.pmap(f, ...)`` becomes ``jax.jit(one_row_each(f, ...), ...)``.

``one_row_each`` looks at its arguments when it is traced, so that any number of devices and any
axes do. Where the same function is mapped again and again, ``kept_one_row_each`` returns the same
mapped function each time, so that it is compiled once.
"""

from __future__ import annotations

import ast

from pmapx._src.codemod.forms.use import FOR_JIT, Use, spelled
from pmapx._src.codemod.text.editor import Editor

PREFERENCE = 40
# Options of pmap that ``one_row_each`` has.
FOR_ROWS = {
    "axis_name": "axis_name",
    "in_axes": "in_axes",
    "out_axes": "out_axes",
    "static_broadcasted_argnums": "static_argnums",
    "devices": "devices",
    "backend": "backend",
}


def obstacle(use: Use) -> str:
    if use.site.kind not in ("call", "wrapper"):
        return "it is no call"
    return obstacle_to_rows(use)


def obstacle_to_rows(use: Use) -> str:
    """Returns why a call or a decorator cannot be written with ``one_row_each``."""
    if use.around.in_processes:
        return "each process has only its own shards"
    if not use.has_known_arguments:
        return "its options are not all written at the site"
    if use.is_in_f_string:
        return "it is inside an f-string"
    static = use.site.option("static_broadcasted_argnums")
    if static is not None and not static.isidentifier() and not _is_literal(static):
        return "its static positions are written twice, so that they must be plain"
    return "it has comments inside, which would be lost" if use.has_comments else ""


def functions(use: Use) -> list[str]:
    return ["kept_one_row_each" if use.is_made_again else "one_row_each"]


def write(use: Use, editor: Editor) -> None:
    function, options = use.parts(editor)
    (helper,) = functions(use)
    inner, outer = [function, *spelled(options, FOR_ROWS)], spelled(options, FOR_JIT)
    mapped = f"{helper}({', '.join(inner)})"
    if _is_mapped_by_another(use):
        # One jax.jit does for both.
        editor.replace(use.site.whole, mapped)
        return
    text = f"jax.jit({', '.join([mapped, *outer])})"
    used = use.site.whole.column + len(editor.rest_of_line(use.site.whole))
    if used + len(text.partition("\n")[0]) > editor.width:
        indent = editor.indent(use.site.whole.line)
        deeper = indent + editor.step
        mapped = editor.short_call(helper, inner, deeper, len(deeper) + len(","))
        text = editor.call("jax.jit", [mapped, *outer], indent)
    editor.replace(use.site.whole, text)


def _is_mapped_by_another(use: Use) -> bool:
    """Returns whether a pmap is written as the function of another, with no option for jit."""
    if any(use.site.option(name) for name in FOR_JIT):
        return False
    return any(
        making.is_nested
        and isinstance(making.node, ast.Call)
        and making.node.args
        and making.node.args[0] is use.whole
        for making in use.module.facts.makings.values()
    )


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True
