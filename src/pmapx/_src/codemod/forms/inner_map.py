"""``jax.pmap(g, "j")(x)`` in a map becomes ``g(x)``: the mesh around has the axis ``"j"``, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pmapx._src.codemod.forms.shard_body import is_array_expression
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.source.rewriting.edits import between

PREFERENCE = 5


def obstacle(use: Use) -> str:
    is_inner = use.grid is not None and use.grid.inner == use.site
    return "" if is_inner else "it is not inside another pmap"


def functions(use: Use) -> list[str]:
    return []


def write(use: Use, editor: Editor) -> None:
    node, place = use.expression, use.site.place
    if use.site.kind == "decorator":
        editor.edits.append(between((place.line, 0), (place.end_line + 1, 0)))
        return
    function = use.parts(editor)[0]
    parent = use.module.parent(node)
    is_called = isinstance(parent, ast.Call) and parent.func is node
    is_name = function.replace(".", "").isidentifier()
    editor.replace(place, f"({function})" if is_called and not is_name else function)


def around(use: Use) -> Iterator[ast.expr]:
    """Yields the expressions of the outer function that ``write_around`` edits."""
    assert use.grid is not None
    yield from (*use.grid.indexed, *use.grid.gathered)


def write_around(use: Use, outer: Use, node: ast.expr, editor: Editor) -> None:
    """Takes a device's own shard of an argument, or gathers a result along the inner axis."""
    assert use.grid is not None
    place, axis = use.module.place(node), use.grid.axes[1]
    text, indent = editor.text(place), editor.indent(place.line)
    used = place.column + len(editor.rest_of_line(place))
    index = f"[jax.lax.axis_index({axis})]"
    if node in use.grid.gathered:
        editor.replace(place, editor.folded_call("jax.lax.all_gather", [text, axis], indent, used))
    elif is_array_expression(outer, node):
        is_atom = isinstance(node, (ast.Call, ast.Name, ast.Attribute, ast.Subscript))
        editor.replace(place, text + index if is_atom else f"({text}){index}")
    else:
        args = [f"lambda x: x{index}", text]
        editor.replace(place, editor.folded_call("jax.tree.map", args, indent, used))
