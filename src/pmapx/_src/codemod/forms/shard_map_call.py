"""``jax.pmap(f, ...)`` becomes ``jax.jit(jax.shard_map(f, mesh=mesh, in_specs=..., ...))``.

Needs a map whose axes can be read. In a program that maps over each of its devices, as far as its
words show, the mesh has all of them: where it maps over fewer, ``jax.shard_map`` raises an error.
In others the mesh is made when the function is traced, of as many devices as there are shards.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from pmapx._src.codemod.decide import fields
from pmapx._src.codemod.forms import (
    body_edits,
    host_local,
    local_function,
    process_calls,
    shard_body,
    top_level,
)
from pmapx._src.codemod.forms.lambda_around import lambda_around
from pmapx._src.codemod.forms.use import FOR_JIT, Use, spelled
from pmapx._src.codemod.text.editor import FOR_TOOLS, Editor, fitting

PREFERENCE = 10
# Why the check is off, where the mapped function takes gradients itself.
GRADIENTS = "gradients stay per device until they are reduced, as under pmap"


def obstacle(use: Use) -> str:
    if use.site.kind not in ("call", "wrapper"):
        return "it is not a call"
    if isinstance(use.layout, str):
        return use.layout
    needed = {*fields.of_arguments(use.layout.in_axes)}
    if needed and (use.names is None or not needed <= {*shard_body.argument_names(use)}):
        return "its specs need an argument whose name is taken"
    return shard_body.obstacle(use) or process_calls.obstacle(use)


def functions(use: Use) -> list[str]:
    return [use.conversion] if use.conversion in (host_local.NAME, host_local.LATER) else []


def is_plain_jit(use: Use) -> bool:
    """Returns whether all devices do the same with the same: ``jax.pmap(optimizer.init)(params)``.

    Without the name of an axis, the function has no collectives.
    """
    layout = use.known_layout
    is_same = layout.is_replicated and not layout.merged and not layout.merged_results
    return is_same and use.site.kind == "call" and not layout.axis and not layout.devices


def imports(use: Use) -> list[str]:
    """Returns the imports that its text needs."""
    is_at_site = process_calls.is_at_site(use) and not use.conversion
    is_partial = is_at_site and use.site.kind != "decorator"
    is_argument = use.is_made_again and top_level.is_argument(use)
    if is_partial or (is_argument and _given_here(use) is None):
        return ["import functools", *([process_calls.IMPORT] if is_at_site else [])]
    return [process_calls.IMPORT] if is_at_site else []


def write(use: Use, editor: Editor) -> None:
    indent = editor.indent(use.site.place.line)
    if not process_calls.is_at_site(use) or is_plain_jit(use):
        used = use.site.place.column + len(editor.rest_of_line(use.site.place))
        replace_call(use, editor, _jitted(use, editor, indent, used))
        return
    deeper = indent + editor.hang
    if use.conversion:
        function, options = use.parts(editor)
        body = mapped_body(use, function, editor, deeper)
        body = local_function.instead_of(body, use, function, editor) or body
        args = [body, *host_local.options(use, editor, deeper)]
        used = use.site.place.column + len(editor.rest_of_line(use.site.place))
        args += spelled(options, FOR_JIT)
        replace_call(use, editor, editor.folded_call(use.conversion, args, indent, used))
        return
    head, body = process_calls.at_site(use, editor, deeper)
    jitted = _jitted(use, editor, deeper, len(deeper) + 1)
    args = [editor.function(f"jitted, {head}", body, deeper), jitted]
    replace_call(use, editor, editor.call("functools.partial", args, indent))


def _jitted(use: Use, editor: Editor, indent: str, used: int) -> str:
    """Returns the jitted function, or what stands for one that is made at the top level."""
    function, options = use.parts(editor)
    if not use.is_made_again:
        return _jit(use, function, options, editor, indent, used)
    is_argument = top_level.is_argument(use)
    name = top_level.name_of(use, function, editor)
    text = function
    if is_argument:
        text = top_level.FUNCTION
        options = top_level.options_beside_function(options)
    jitted = _jit(use, text, options, editor, "", len(f"{name} = "), is_argument=is_argument)
    name = top_level.insert(use, name, jitted, editor)
    call = _given_here(use) if is_argument else None
    if is_argument and call is None:
        return f"functools.partial({name}, {function})"
    if call is not None:
        top_level.give_function(use, call, name, function, editor)
    return name


def _given_here(use: Use) -> ast.Call | None:
    """Returns the call that is given the function, unless it converts what it is given."""
    return None if process_calls.is_converted(use) else top_level.called_here(use)


def _jit(
    use: Use,
    function: str,
    options: Mapping[str, str],
    editor: Editor,
    indent: str,
    used: int,
    *,
    is_argument: bool = False,
) -> str:
    outer = spelled(options, FOR_JIT)
    if is_plain_jit(use):
        return editor.folded_call("jax.jit", [function, *outer], indent, used)
    is_in_jit = not outer and not is_argument and _is_in_jit(use)
    is_hugged = (
        editor.is_filled
        and not is_wrapped(use)
        and used + len("jax.jit(jax.shard_map(") <= editor.width
    )
    deeper = indent if is_in_jit or is_hugged else indent + editor.hang
    early, called = "", function
    if is_wrapped(use) and not use.is_made_again and shard_body.is_read_early(use, function):
        early, called = f", function={function}", "function"
    body = mapped_body(use, called, editor, deeper + editor.hang)
    if name := local_function.instead_of(body, use, function, editor):
        early, body = "", name
    mapped = shard_map(use, body, editor, deeper, early)
    if is_in_jit:
        return mapped
    if is_argument:
        mapped = f"lambda {top_level.FUNCTION}, {mapped.removeprefix('lambda ')}"
    text = f"jax.jit({', '.join([mapped, *outer])})"
    if is_hugged and "\n" in mapped:
        return editor.hugged_call("jax.jit", [mapped, *outer], indent)
    if use.notes(editor) or used + len(text) > editor.width:
        inside = indent + editor.hang
        mapped = editor.folded(mapped, inside, len(inside) + 1)
        return editor.call("jax.jit", [mapped, *outer], indent)
    return text


def _is_in_jit(use: Use) -> bool:
    """Returns whether the site is written as the function of ``jax.jit``, which does for both."""
    call = use.module.parent(use.expression)
    if not isinstance(call, ast.Call) or use.expression not in call.args[:1]:
        return False
    made = use.module.facts.calls.get(call)
    return made is not None and "jax.jit" in made.names


def mapped_body(use: Use, function: str, editor: Editor, indent: str) -> str:
    """Returns the text of what is given to shard_map, or to the lambda around it."""
    if not re.search(r"\'\'\'|\"\"\"|\\\n", function):
        # It is deeper than it was, by one step or more.
        deeper = len(indent.removesuffix(editor.hang)) - len(editor.indent(use.site.place.line))
        function = function.replace("\n", f"\n{indent[: max(deeper, 0)] or editor.step}")
    is_edited = shard_body.is_edited(use)
    if is_edited:
        body_edits.edit(use, editor)
    if is_edited or not shard_body.converts(use):
        names = use.names or []
        given = shard_body.by_name(use, names)
        if given == names or use.known_layout.static:
            return function
        call = shard_body.call_of(function, given, editor, indent)
        return f"lambda {', '.join(names)}: {call}"
    return lambda_around(use, function, editor, indent)


def is_wrapped(use: Use) -> bool:
    """Returns whether a lambda calls ``jax.shard_map`` when it is traced."""
    layout = use.known_layout
    is_later = bool(layout.static) or bool(fields.of_arguments(layout.in_axes))
    return is_later or use.is_called_by_keyword or use.is_lazy


def shard_map(use: Use, body: str, editor: Editor, indent: str, early: str = "") -> str:
    """Returns ``jax.shard_map(...)``, in a lambda where it cannot stand alone.

    Static arguments and keywords do not go to ``jax.shard_map``; specs of an argument, and a mesh
    that would start JAX's backend at import, are made when the function is traced. ``early`` is a
    parameter of the lambda.
    """
    layout = use.known_layout
    names = None if use.names is None else shard_body.argument_names(use)
    if not is_wrapped(use):
        return written(use, body, editor, indent)
    if use.takes_keywords:
        size = use.size(None) if use.is_sized else ""
        text = written(use, body, editor, indent, size)
        given = _given("args, kwargs", text, editor, indent)
        return f"lambda *args{early}, **kwargs: {text}({given})"
    is_short = layout.is_leading and not use.is_called_by_keyword
    is_one = use.is_sized and use.site.kind != "wrapper" and len(names or ()) == 1
    if names is None or (is_short and not is_one):
        head, given = ", ".join([*use.names_before_others, "*args"]), "*args"
        names = None
    else:
        # Calls by keyword use the names of the function.
        names = use.names if use.is_called_by_keyword else names
        assert names is not None
        head = ", ".join(names)
        given = ", ".join(name for i, name in enumerate(names) if i not in layout.static)
        if layout.static and (shard_body.is_edited(use) or not shard_body.converts(use)):
            is_long = len(f"{indent}@lambda function: lambda {head}: jax.shard_map(") > editor.width
            body = shard_body.static_bound(use, body, names, editor, indent + editor.hang)
            count = len(layout.static)
            if is_long and not use.is_called_by_keyword and layout.static == tuple(range(count)):
                head, given = ", ".join([*names[:count], "*args"]), "*args"
    text = written(use, body, editor, indent, use.size(names) if use.is_sized else "")
    given = _given(given, text, editor, indent)
    is_long = len(f"{indent}lambda {head}{early}: jax.shard_map(") > editor.width
    # A decorator has no brackets around it.
    if is_long and use.site.kind != "decorator":
        first, _, last = (head, "", early[2:]) if early else head.rpartition(", ")
        head, early = f"{first},\n{indent}{editor.hang}{last}" if first else last, ""
    return f"lambda {head}{early}: {text}({given})"


def _given(names: str, function: str, editor: Editor, indent: str) -> str:
    """Returns the arguments of a function, on a line of their own if they do not fit behind it."""
    last = function.rpartition("\n")[2]
    if "\n" not in function or len(last) + len(f"({names}),") <= editor.width:
        return names
    return f"\n{indent}{editor.hang}{names}" + ("" if editor.is_filled else f"\n{indent}")


def written(use: Use, body: str, editor: Editor, indent: str, size: str = "") -> str:
    layout, count = use.known_layout, None if use.names is None else len(use.names)
    deeper = indent + editor.hang
    specs = [
        use.mesh_text(editor, deeper, size),
        f"in_specs={fitting(layout.in_specs(use.axis, count), editor, len(deeper) + 9)}",
        f"out_specs={fitting(layout.out_specs(use.axis), editor, len(deeper) + 10)}",
    ]
    specs = [editor.folded(text, deeper, len(deeper) + 1) for text in specs]
    args = [*([body] if body else []), *specs]
    text = editor.folded_call("jax.shard_map", [*args, "check_vma=False"], indent, len(indent) + 1)
    is_long = text.endswith(f"check_vma=False,\n{indent})")
    if is_long and use.function is not None and use.function.takes_gradients:
        last = f"check_vma=False,  # {GRADIENTS}"
        if len(indent + editor.hang) + len(last) <= editor.width:
            return editor.call("jax.shard_map", args, indent, last)
    return text


def replace_call(use: Use, editor: Editor, text: str) -> None:
    """Puts a call in the place of the site, with its comments where they belong."""
    indent = editor.indent(use.site.place.line)
    found = use.notes(editor)
    # What a tool reads is of the line that it is on.
    of_line = [note for note, _ in found if FOR_TOOLS.match(note)][:1]
    head, notes = f"(  {of_line[0]}\n" if of_line else "(\n", ""
    for note, option in found:
        kept = "" if FOR_TOOLS.match(note) else _above_option(text, note, option, editor, indent)
        text = kept or text
        if not kept and not FOR_TOOLS.match(note):
            notes += f"{indent}{editor.hang}{note}\n"
    editor.replace(use.site.place, text.replace("(\n", f"{head}{notes}", 1))


def _above_option(text: str, note: str, option: str | None, editor: Editor, indent: str) -> str:
    """Returns the text with a comment above an option that ``jax.jit`` has too, or nothing."""
    name = FOR_JIT.get(option or "", "")
    if not name or len(re.findall(rf"\b{name}=", text)) != 1:
        return ""
    before, after = re.split(rf"\b(?={name}=)", text)
    line = before.rpartition("\n")[2]
    if line.strip() or "\n" not in before:
        # The option gets a line of its own, below the call that it is given to.
        depth, at = 1, len(before)
        while depth and at:
            at -= 1
            depth += {")": 1, "(": -1}.get(before[at], 0)
        start = before[:at].rpartition("\n")[2] if "\n" in before[:at] else indent
        line = start[: len(start) - len(start.lstrip())] + editor.hang
        before = f"{before.rstrip()}\n{line}"
    return f"{before}{note}\n{line}{after}"
