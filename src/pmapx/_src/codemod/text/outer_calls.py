"""Calls around a new text of several lines, laid out again as formatters do.

A call that was on one line gets an argument a line; the arguments after a new function, which
were aligned with the old one, are indented anew.
"""

from __future__ import annotations

import ast

from pmapx._src.analysis.module import Module
from pmapx._src.codemod.text.call_tokens import comments, needs_parentheses, on_one_line
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.source.rewriting.edits import Edit, between, ends, starts


def lay_out(module: Module, editor: Editor) -> None:
    """Breaks the lines of the outermost calls that have an argument of several lines now."""
    for node in module.nodes:
        if isinstance(node, ast.Call) and _is_misaligned(module, editor, node):
            _align(module, editor, node)
    if editor.is_filled:
        return
    lines = {edit.line for edit in editor.edits if "\n" in edit.text}
    calls = [
        node
        for node in module.nodes
        if isinstance(node, ast.Call) and node.lineno in lines and _is_broken(module, editor, node)
    ]
    inner = {part for call in calls for part in ast.walk(call) if part is not call}
    for call in calls:
        if call not in inner:
            text = _laid_out(module, editor, call, editor.indent(call.lineno))
            # The lines are one step deeper than those that they were made to fit in.
            now = _too_long(editor, editor.text(module.place(call)))
            if _too_long(editor, text) <= now:
                editor.replace(module.place(call), text)


def broken(module: Module, call: ast.Call, added: int) -> list[Edit]:
    """Puts arguments on a line of their own if ``added`` columns more make theirs too long."""
    editor, place, around = Editor(module.source), module.place(call), module.parent(call)
    line = module.source.line(place.line)
    if place.line != place.end_line or len(line) + added <= editor.width:
        return []
    # As formatters do: the last brackets of the line first.
    is_called = isinstance(around, ast.Call) and around.func is call and around.args
    if is_called and place.end_column + added < editor.width:
        call, place = around, module.place(around)  # type: ignore[assignment]
    start = line.find("(", module.place(call.func).end_column) + 1
    if place.line != place.end_line or not start:
        return []
    end, indent = (place.line, place.end_column - 1), editor.indent(place.line)
    found = [between((place.line, start), (place.line, start), f"\n{indent}{editor.hang}")]
    return found if editor.is_filled else [*found, between(end, end, f"\n{indent}")]


def refold(editor: Editor, call: ast.AST) -> None:
    """Writes a call of several lines again, one of whose arguments is shorter now."""
    if not isinstance(call, ast.Call) or call.lineno == call.end_lineno:
        return
    place = editor.source.place(call)
    parts = [editor.text(editor.source.place(each)) for each in (*call.args, *call.keywords)]
    function = editor.text(editor.source.place(call.func))
    if comments(editor.source, place) or any("\n" in part for part in (function, *parts)):
        return
    used = place.column + len(editor.rest_of_line(place))
    editor.replace(place, editor.folded_call(function, parts, editor.indent(place.line), used))


def _too_long(editor: Editor, text: str) -> int:
    return sum(len(line) > editor.width for line in text.splitlines())


def _is_broken(module: Module, editor: Editor, call: ast.Call) -> bool:
    """Returns whether a call was on one line, and only its arguments have several now."""
    if call.lineno != call.end_lineno:
        return False
    place = module.place(call)
    is_covered = any(
        starts(at) <= starts(place) and ends(place) <= ends(at)
        for at in (edit.place(place.path) for edit in editor.edits)
    )
    text = editor.text(place)
    if is_covered or "\n" not in text or '"""' in text or "'''" in text:
        return False
    parts = [module.place(part) for part in (call.func, *call.args, *call.keywords)]
    inside = [at for edit in editor.edits if (at := edit.place(place.path)).is_inside(place)]
    if any(not any(at.is_inside(part) for part in parts) for at in inside):
        # Its parentheses are edited too.
        return False
    return "\n" not in editor.text(module.place(call.func))


def _laid_out(module: Module, editor: Editor, call: ast.Call, indent: str) -> str:
    parts: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    texts = []
    for part in sorted(parts, key=lambda part: part.col_offset):
        value = part.value if isinstance(part, ast.keyword) else part
        if isinstance(value, ast.Call) and _is_broken(module, editor, value):
            name = f"{part.arg}=" if isinstance(part, ast.keyword) and part.arg else ""
            stars = "**" if isinstance(part, ast.keyword) and not part.arg else ""
            inner = _laid_out(module, editor, value, indent + editor.hang)
            texts.append(f"{name}{stars}{inner}")
        else:
            # Its lines were made for the indentation of the line that the call is on.
            deeper = indent.removeprefix(editor.indent(call.lineno)) + editor.hang
            text = editor.text(module.place(part))
            short = on_one_line(text)
            is_fitting = short and len(f"{indent}{editor.hang}{short},") <= editor.width
            texts.append(short if is_fitting else text.replace("\n", f"\n{deeper}"))
    function = editor.text(module.place(call.func))
    if needs_parentheses(call.func):
        function = f"({function})"
    return editor.folded_call(function, texts, indent, editor.width)


def _is_misaligned(module: Module, editor: Editor, call: ast.Call) -> bool:
    """Returns whether a function of several lines is new, before arguments of several lines."""
    if not (call.args or call.keywords) or call.func.end_lineno == call.end_lineno:
        return False
    is_new = call.func.lineno == call.func.end_lineno
    return is_new and "\n" in editor.text(module.place(call.func))


def _align(module: Module, editor: Editor, call: ast.Call) -> None:
    function, written = editor.text(module.place(call.func)), editor.text(module.place(call))
    if not written.startswith(function) or needs_parentheses(call.func):
        return
    parts: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    texts = [on_one_line(editor.text(module.place(part))) for part in parts]
    if "#" in written.removeprefix(function) or not all(texts):
        return
    last = function.rpartition("\n")[2]
    indent = last[: len(last) - len(last.lstrip())]
    indent = editor.indent(call.lineno) if last.strip()[:1] == ")" else indent
    deeper = indent + editor.hang
    folded = [editor.folded(text, deeper, len(deeper) + 1) for text in texts]
    text = editor.folded_call(last, folded, indent, 0)
    editor.replace(module.place(call), function.removesuffix(last) + text)
