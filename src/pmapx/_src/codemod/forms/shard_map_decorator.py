"""``@jax.pmap`` becomes ``@jax.jit`` and ``@jax.shard_map(mesh=mesh, in_specs=..., ...)``.

Needs what ``shard_map_call`` needs. With static arguments, or a mesh that is made when the function
is traced, its body goes into a function of its own::

    @functools.partial(jax.jit, static_argnums=1)
    def split(key, count):
        @jax.shard_map(mesh=device_mesh(), in_specs=jax.P("i"), out_specs=jax.P("i"), ...)
        def per_device(key):
            return jax.random.split(key[0], count)[None]

        return per_device(key)

Where the function below cannot be edited, as below another decorator, a lambda takes it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Sequence

from pmapx._src.codemod.forms import body_edits, host_local, process_calls, shard_body
from pmapx._src.codemod.forms.lambda_around import lambda_around
from pmapx._src.codemod.forms.shard_map_call import is_wrapped, shard_map, written
from pmapx._src.codemod.forms.use import FOR_JIT, Use, spelled
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.source.files import first_line
from pmapx._src.source.location import Place
from pmapx._src.source.rewriting.edits import between

PREFERENCE = 20
PER_DEVICE = "per_device"
# What means something else in a function inside of a function.
_OF_FRAMES = frozenset({"super", "__class__", "locals", "vars", "eval", "exec", "dir"})
_DECLARATIONS = (ast.Import, ast.ImportFrom, ast.Nonlocal, ast.Global)
_BOUND = (ast.Store, ast.Del)
_BEFORE = re.compile(r"\s*@[\s(]*")


def obstacle(use: Use) -> str:
    if isinstance(use.layout, str):
        return use.layout
    return _obstacle_to_stack(use) or shard_body.obstacle(use) or process_calls.obstacle(use)


def functions(use: Use) -> list[str]:
    return [use.conversion] if use.conversion in (host_local.NAME, host_local.LATER) else []


def write(use: Use, editor: Editor) -> None:
    indent = editor.indent(use.site.place.line)
    if use.conversion and isinstance(use.expression, ast.Call):
        partial = editor.text(editor.source.place(use.expression.func))
        given = [use.conversion, *host_local.options(use, editor, indent + editor.hang)]
        given += spelled(use.parts(editor)[1], FOR_JIT)
        if shard_body.is_edited(use):
            body_edits.edit(use, editor)
        text = editor.folded_call(partial, given, indent, len(indent) + 1)
        _stack(use, editor, [text], [note for note, _ in use.notes(editor)])
        return
    jit = "jax.jit"
    if isinstance(use.expression, ast.Call):
        partial = editor.text(editor.source.place(use.expression.func))
        outer = spelled(use.parts(editor)[1], FOR_JIT)
        if outer:
            jit = editor.folded_call(partial, [jit, *outer], indent, len(indent) + 1)
    if not shard_body.is_edited(use) and shard_body.converts(use):
        body = lambda_around(use, "function", editor, indent + editor.hang)
        mapped = f"lambda function: {shard_map(use, body, editor, indent)}"
    elif not is_wrapped(use):
        mapped = written(use, "", editor, indent)
    elif inner := _inner_function(use, editor):
        mapped, jit = jit, ""
        editor.last.append(inner)
    else:
        mapped = f"lambda function: {shard_map(use, 'function', editor, indent)}"
    if shard_body.is_edited(use):
        # An inner function is indented by a step more.
        editor.width -= 0 if jit else len(editor.step)
        body_edits.edit(use, editor)
        editor.width += 0 if jit else len(editor.step)
    texts = [jit, mapped] if jit else [mapped]
    if process_calls.is_at_site(use):
        head, body = process_calls.at_site(use, editor, indent)
        texts.insert(0, f"lambda jitted: lambda {head}: {body}")
    _stack(use, editor, texts, [note for note, _ in use.notes(editor)])


def _obstacle_to_stack(use: Use) -> str:
    """Returns why a site cannot become several decorators."""
    if use.site.kind != "decorator":
        return "it is not a decorator"
    line = use.module.source.line(use.site.place.line)
    if not _BEFORE.fullmatch(line[: use.site.place.column]):
        return "its @ is on another line"
    return "" if use.has_known_arguments else "its options are not all written at the site"


def _stack(use: Use, editor: Editor, texts: Sequence[str], notes: Sequence[str]) -> None:
    """Writes decorators one below another: the last has what is beside the one that was there."""
    indent = editor.indent(use.site.place.line)
    *first, last = texts
    above = [*notes, *(f"@{text}" for text in first)]
    text = "".join(f"{each}\n{indent}" for each in above)
    # In the place of the @: what is inserted before it stays before it.
    at = (use.site.place.line, len(indent))
    editor.edits.append(between(at, (at[0], at[1] + 1), f"{text}@"))
    editor.replace(use.site.place, last)


def _inner_function(use: Use, editor: Editor) -> Callable[[], None] | None:
    """Returns what moves the body into an inner function, None if it cannot be one."""
    node, names = use.function and use.function.node, use.names
    if not editor.moves_bodies or not shard_body.is_edited(use) or use.grid:
        return None
    if not isinstance(node, ast.FunctionDef):
        return None
    parts = [part for statement in node.body for part in ast.walk(statement)]
    found = [part for part in parts if isinstance(part, ast.Name)]
    used, bound = ({n.id for n in found if isinstance(n.ctx, kind)} for kind in (ast.Load, _BOUND))
    taken = [name for i, name in enumerate(names or []) if i not in use.known_layout.static]
    # What is bound in the inner function is no longer the parameter of the outer one.
    parameters = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
    is_same = names == shard_body.argument_names(use) and not bound & (parameters - {*taken})
    is_same = is_same and not (used & _OF_FRAMES or node.args.vararg or node.args.kwarg)
    if not taken or not is_same or any(isinstance(part, _DECLARATIONS) for part in parts):
        return None
    first = node.body[1] if ast.get_docstring(node) is not None else node.body[0]
    place = _body_place(use, node, first, editor)
    if place is None or _has_longer_lines(editor.source.segment(place), editor):
        return None
    indent = editor.indent(node.lineno) + editor.step
    size = use.size(names) if use.is_sized else ""
    gap = "\n" if first is not node.body[0] else ""
    head = gap + indent
    is_alone = len(use.mesh) > 1 and not process_calls.is_at_site(use)
    if is_alone and "mesh" not in used | bound | parameters:
        text = use.mesh_text(editor, indent, size).replace("mesh=", "mesh = ", 1)
        use.mesh, head = ("mesh",), f"{head}{text}\n\n{indent}"
    mapped = written(use, "", editor, indent, size)
    is_free = PER_DEVICE not in used | bound | parameters
    name = PER_DEVICE if is_free else f"{PER_DEVICE}_{node.name}"
    given = ", ".join(taken)

    def write() -> None:
        body = editor.text(place).strip("\n")
        body = body if body[:1] != " " or place.column == 0 else indent + body.lstrip()
        text = f"{head}@{mapped}\n{indent}def {name}({given}):\n{moved_deeper(body, editor)}\n"
        before = "\n" if place.column else ""
        editor.replace(place, f"{before}{text}\n{indent}return {name}({given})")

    return write


def _body_place(use: Use, node: ast.FunctionDef, first: ast.stmt, editor: Editor) -> Place | None:
    """Returns the lines of a body below its docstring, or what follows the colon on one line."""
    line, column, end = first_line(first), 0, node.end_lineno or 0
    above = editor.source.line(line)[: use.module.place(first).column]
    if above.strip():
        if not (first.lineno == node.lineno == end and first is node.body[-1]):
            return None
        column = len(above.rstrip())
    while not column and re.fullmatch(r"\s*(#.*)?", editor.source.line(line - 1)):
        line -= 1
    return Place(editor.source.path, line, column, end, len(editor.source.line(end)))


def _has_longer_lines(text: str, editor: Editor) -> bool:
    """Returns whether a line that fits is too long if it is indented by a step more."""
    lines = moved_deeper(text, editor).split("\n")
    old = [line for line in text.split("\n") if len(line) > editor.width]
    return sum(len(line) > editor.width for line in lines) > len(old)


def moved_deeper(text: str, editor: Editor) -> str:
    """Returns lines of code indented by a step more, in lines that fit; strings stay."""
    inside: set[int] = set()
    opened = 0
    for token in tokenize.generate_tokens(io.StringIO(f"if 1:\n{text}\n").readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        elif kind == "FSTRING_START":
            opened = token.start[0]
        elif kind == "FSTRING_END":
            inside.update(range(opened + 1, token.end[0] + 1))
    lines: list[str] = []
    for at, line in enumerate(text.split("\n"), 2):
        deeper = line if at in inside or not line else editor.step + line
        is_short = len(deeper) <= editor.width or len(line) > editor.width
        lines.append(deeper if is_short else _folded(deeper, editor))
    return "\n".join(lines)


def _folded(line: str, editor: Editor) -> str:
    """Returns a line that has one statement with a call on several lines."""
    code = line.strip()
    indent = line[: len(line) - len(code)]
    try:
        (statement,) = ast.parse(code).body
    except (SyntaxError, ValueError):
        return line
    value = getattr(statement, "value", None)
    text = ast.get_source_segment(code, value) if value is not None else None
    if text is None or not code.endswith(text):
        return line
    before = indent + code.removesuffix(text)
    return before + editor.folded(text, indent, len(before))
