"""``@functools.partial(jax.pmap, ...)`` becomes ``@jax.jit`` and ``@one_row_each``.

Each is a ``functools.partial`` with the options that belong to it. Needs what ``rows_call`` needs.
"""

from __future__ import annotations

import ast

from pmapx._src.codemod.forms import decorators
from pmapx._src.codemod.forms.rows_call import FOR_ROWS, obstacle_to_rows
from pmapx._src.codemod.forms.use import FOR_JIT, Use, spelled
from pmapx._src.codemod.text.editor import Editor

PREFERENCE = 50


def obstacle(use: Use) -> str:
    return decorators.obstacle(use) or obstacle_to_rows(use)


def functions(use: Use) -> list[str]:
    return ["one_row_each"]


def write(use: Use, editor: Editor) -> None:
    texts = ["jax.jit", "one_row_each"]
    if isinstance(use.whole, ast.Call):
        partial = editor.text(editor.source.place(use.whole.func))
        options = use.parts(editor)[1]
        indent = editor.indent(use.site.whole.line)
        for number, wanted in enumerate((FOR_JIT, FOR_ROWS)):
            args = [texts[number], *spelled(options, wanted)]
            if len(args) > 1:
                texts[number] = editor.short_call(partial, args, indent, len(indent) + len("@"))
    decorators.stack(use, editor, texts)
