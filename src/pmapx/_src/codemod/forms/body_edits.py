"""Edits of a mapped function: device axes are taken off first, and put on in what it returns."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Sequence

from pmapx._src.codemod.decide import fields
from pmapx._src.codemod.forms.shard_body import (
    adding,
    index_of,
    is_array_expression,
    out_axes,
    put,
    taken,
)
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.call_tokens import is_bare_tuple, on_one_line
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.source.files import first_line
from pmapx._src.source.rewriting.edits import between, ends, starts


def edit(use: Use, editor: Editor) -> None:
    """Takes the axes off at the beginning of the function, and puts them on in what it returns."""
    mapped = use.function
    assert mapped is not None
    assert isinstance(mapped.node, ast.FunctionDef)
    _edit_arguments(use, mapped.node, editor)
    for each in mapped.returns:
        if each.value is not None:
            _edit_return(use, each, each.value, editor)


def _edit_arguments(use: Use, node: ast.FunctionDef, editor: Editor) -> None:
    layout, names = use.known_layout, use.names
    assert names is not None
    converted = [
        (name, layout.in_axis(i), use.is_array(name))
        for i, name in enumerate(names)
        if i not in layout.static and layout.in_axis(i) is not None
    ]
    if not converted:
        return
    lines = lines_taken(use, converted, editor, editor.indent(node.lineno) + editor.step)
    has_docstring = ast.get_docstring(node) is not None
    first = node.body[1] if has_docstring and len(node.body) > 1 else node.body[0]
    if first.lineno == node.lineno or (has_docstring and len(node.body) == 1):
        indent = editor.indent(node.lineno) + editor.step
        above_body = editor.source.line(first.lineno)[: use.module.place(first).column]
        colon = len(above_body.rstrip())
        text = "".join(f"\n{indent}{each}" for each in lines) + f"\n{indent}"
        editor.edits.append(
            between((first.lineno, colon), (first.lineno, use.module.place(first).column), text)
        )
        return
    line = first_line(first)
    indent = editor.indent(line)
    # Comments stay with the statement below them, and a blank line below the signature stays there.
    blank = () if has_docstring else ("",)
    while (above := editor.source.line(line - 1).strip()).startswith("#") or above in blank:
        line -= 1
    text = "".join(f"{indent}{each}\n" for each in lines)
    is_definition = isinstance(first, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    if is_definition and editor.source.line(line).strip():
        text += "\n"
    editor.insert(line, 0, text)


def lines_taken(
    use: Use,
    converted: Sequence[tuple[str, object, bool]],
    editor: Editor,
    indent: str,
    change: Callable[..., str] = taken,
) -> list[str]:
    """Returns the statements that take axes off names, or put them on with ``change=put``.

    Each name has its axis, and whether it is one array.
    """
    lines = []
    trees = [name for name, axis, is_array in converted if axis == 0 and not is_array]
    room = editor.width - len(f"{indent} = jax.tree.map(")
    for names in _in_lines(trees, room) if len(trees) > 1 else ():
        several = ", ".join(names)
        text = change(several if len(names) == 1 else f"({several})", 0, use.axis)
        lines.append(f"{several} = {editor.folded(text, indent, len(f'{indent}{several} = '))}")
    for name, axis, is_array in converted:
        if len(trees) < 2 or name not in trees:
            text = change(name, axis, use.axis, is_array=is_array)
            lines.append(f"{name} = {editor.folded(text, indent, len(f'{indent}{name} = '))}")
    return lines


def _in_lines(names: Sequence[str], width: int) -> list[list[str]]:
    """Returns names by lines that they fit on.

    >>> _in_lines(["state", "batch", "rng"], 12)
    [['state', 'batch'], ['rng']]
    """
    lines: list[list[str]] = [[]]
    for name in names:
        if lines[-1] and len(", ".join([*lines[-1], name])) > width:
            lines.append([])
        lines[-1].append(name)
    return lines


def _edit_return(use: Use, statement: ast.Return, value: ast.expr, editor: Editor) -> None:
    axes = out_axes(use)
    if isinstance(axes, tuple) and isinstance(value, ast.Tuple):
        for element, axis in zip(value.elts, axes, strict=True):
            if axis is not None:
                _wrap(use, element, axis, editor)
        _fold(use, statement, value, axes, editor)
    elif isinstance(axes, tuple):
        indent = editor.indent(statement.lineno)
        if use.function is not None and use.function.node.lineno == statement.lineno:
            indent += editor.step
        names = _result_names(use, len(axes))
        parts = [put(name, axis, use.axis) for name, axis in zip(names, axes, strict=True)]
        start, end = starts(use.module.place(statement)), ends(use.module.place(statement))
        first = between(start, starts(use.module.place(value)), f"{', '.join(names)} = ")
        editor.edits += [first, between(end, end, f"\n{indent}return {', '.join(parts)}")]
    elif axes is not None:
        elements = value.elts if isinstance(value, ast.Tuple) else []
        are_arrays = bool(elements) and all(is_array_expression(use, each) for each in elements)
        for each in elements if are_arrays else [value]:
            _wrap(use, each, axes, editor)


def _fold(
    use: Use,
    statement: ast.Return,
    value: ast.Tuple,
    axes: tuple[object, ...],
    editor: Editor,
) -> None:
    """Puts the elements of a tuple on lines of their own, if it is too long for one.

    Neighbors that get the same axis get it together.
    """
    place = use.module.place(value)
    text = editor.text(place)
    is_long = "\n" in text or place.column + len(text) > editor.width
    if not is_long or re.search(r"\n|#", editor.source.segment(place)):
        return
    indent = editor.indent(statement.lineno)
    deeper = indent + editor.step
    parts = []
    for key, run in itertools.groupby(
        zip(value.elts, axes, strict=True), lambda pair: _shared_axis(use, *pair)
    ):
        elements = [element for element, _ in run]
        if key is None:
            parts += [_element(use, element, editor, deeper) for element in elements]
            continue
        texts = [editor.source.segment(use.module.place(element)) for element in elements]
        is_one = len(texts) == 1
        args = [adding(use, key), texts[0] if is_one else f"({', '.join(texts)})"]
        function = "jax.tree.map" if is_one else "*jax.tree.map"
        parts.append(editor.folded_call(function, args, deeper, len(deeper) + 1))
    editor.replace(place, editor.call("", parts, indent))


def _element(use: Use, element: ast.expr, editor: Editor, indent: str) -> str:
    """Returns an element of a tuple on a line of its own: a call that is too long, on several."""
    text = editor.text(use.module.place(element))
    if "\n" in text or len(f"{indent}{text},") <= editor.width or not isinstance(element, ast.Call):
        return text
    given: list[ast.expr | ast.keyword] = [*element.args, *element.keywords]
    places = [use.module.place(part) for part in sorted(given, key=lambda part: part.col_offset)]
    args = [editor.text(place) for place in places]
    function = editor.text(use.module.place(element.func))
    if function != editor.source.segment(use.module.place(element.func)):
        # Something is written around the call.
        return text
    return editor.folded_call(function, args, indent, len(indent) + 1)


def _shared_axis(use: Use, element: ast.expr, axis: object) -> int | None:
    is_tree = not isinstance(element, ast.Starred) and not is_array_expression(use, element)
    return axis if isinstance(axis, int) and is_tree else None


def _result_names(use: Use, count: int) -> list[str]:
    mapped = use.function
    assert mapped is not None
    used = {part.id for part in ast.walk(mapped.node) if isinstance(part, ast.Name)}
    names = ["result", "other", "third"] if count <= 3 else [f"result{i}" for i in range(count)]
    return [f"{name}_" if name in used else name for name in names[:count]]


def _replaced_fields(node: ast.expr, axis: set[str]) -> list[ast.expr]:
    """Returns what ``state.replace(...)`` gives to the fields with an axis, none if not to all."""
    known = fields.read(axis)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return []
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    is_all = node.func.attr == known.method and set(known.names) <= set(given)
    return [given[name] for name in known.names] if is_all else []


def _wrap(use: Use, node: ast.expr, axis: object, editor: Editor) -> None:
    """Puts an axis on what an expression gives."""
    place = use.module.place(node)
    text = editor.text(place)
    is_tuple = is_bare_tuple(editor.source, node)
    if isinstance(axis, (int, str)) and is_array_expression(use, node):
        index = index_of(axis, "None")
        needs = not isinstance(node, (ast.Call, ast.Name, ast.Attribute, ast.Subscript))
        before, after = ("(", f")[{index}]") if needs else ("", f"[{index}]")
    elif isinstance(axis, (int, str)):
        before, after = f"jax.tree.map({adding(use, axis)}, ", ")"
        if is_tuple:
            before, after = before + "(", "))"
        first = text.partition("\n")[0]
        used = place.column + len(first) + len(before) + (len(after) if first == text else 0)
        line = "" if "#" in text and first != text else on_one_line(text)
        if line and used > editor.width:
            indent = editor.indent(place.line)
            deeper = indent + editor.hang
            inner = f"({line})" if is_tuple else line
            args = [adding(use, axis), editor.folded(inner, deeper, len(deeper) + 1)]
            editor.replace(place, editor.folded_call("jax.tree.map", args, indent, place.column))
            return
    elif isinstance(axis, set) and (values := _replaced_fields(node, axis)):
        for value in values:
            at = use.module.place(value)
            before, after = f"jax.tree.map({adding(use, 0)}, ", ")"
            if is_array_expression(use, value):
                before, after = "(", ")[None]"
            if isinstance(value, (ast.Name, ast.Attribute)) and after.endswith("]"):
                before, after = "", "[None]"
            edits = [between(starts(at), starts(at), before), between(ends(at), ends(at), after)]
            editor.edits += edits
        return
    elif isinstance(axis, set) and isinstance(node, (ast.Name, ast.Attribute)):
        before, after = "", put(text, axis, use.axis).removeprefix(text)
    else:
        put_back = put("(out)", axis, use.axis).replace("(out)", "out")
        before, after = f"(lambda out: {put_back})(", ")"
        if is_tuple:
            before, after = before + "(", "))"
    start, end = starts(place), ends(place)
    editor.edits += [between(start, start, before), between(end, end, after)]
