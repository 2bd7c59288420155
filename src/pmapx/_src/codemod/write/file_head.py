"""What a migrated file is given at its top: emitted functions, and the imports that it needs."""

from __future__ import annotations

import ast
from collections.abc import Collection

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Named
from pmapx._src.codemod.decide import axis_names
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.emitted import functions
from pmapx._src.emitted.functions import Manner
from pmapx._src.source.rewriting import added_imports
from pmapx._src.source.rewriting.edits import Edit, lines_of


def is_emitted(node: ast.AST, name: str, manner: Manner) -> bool:
    """Returns whether a function is the one that an earlier run wrote."""
    found = functions.find(name, manner).node
    return axis_names.without_name(found) == axis_names.without_name(node)


def added(
    module: Module,
    editor: Editor,
    used: Collection[str],
    manner: Manner,
    lines_wanted: Collection[str] = (),
) -> list[Edit]:
    """Returns the edits that give a file, or a notebook's first cell with an edit, what it uses."""
    here = {
        node.name
        for node in module.source.tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    wanted = [name for name in functions.with_needs(used, manner) if name not in here]
    axis_name = axis_names.of_maps(module)
    lines = [*lines_wanted, *functions.imports(wanted, manner)]
    if module.env.find("jax") != frozenset({Named("jax")}):
        lines.append("import jax")
    return added_imports.added(
        module.source,
        lines,
        changed=lines_of(editor.edits),
        functions=[
            axis_names.with_name(functions.text(name, editor.step, manner), axis_name)
            for name in wanted
        ],
        used=used,
        # Behind what an earlier run wrote, since the new may use it.
        below=functions.names(),
    )
