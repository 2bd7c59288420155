"""Calls of a map in a multi-process program: host-local arrays become global ones, and back.

Under pmap each process passes its own shards. ``jax.jit`` of ``jax.shard_map`` takes arrays of all
processes, which ``multihost_utils`` makes of them without a copy; it leaves global arrays alone.
"""

from __future__ import annotations

import ast

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Mapped
from pmapx._src.codemod.decide.map_calls import map_calls
from pmapx._src.codemod.decide.specs import LOCAL
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.call_tokens import arguments
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.source.rewriting.edits import ends

IMPORT = "from jax.experimental import multihost_utils"
_TO_GLOBAL = "multihost_utils.host_local_array_to_global_array"
_TO_LOCAL = "multihost_utils.global_array_to_host_local_array"


def obstacle(use: Use) -> str:
    """Returns why the calls of a map cannot be given global arrays."""
    if not use.around.in_processes:
        return ""
    layout = use.known_layout
    if layout.devices == LOCAL:
        return ""
    if layout.devices:
        return "each process has devices of its own"
    if not use.is_axis_constant:
        return "the name of its axis is not known where it is called"
    own = [i for i, axis in enumerate(_parts(layout.in_axes)) if axis is None]
    if set(own) - use.replicated - set(layout.static):
        return "each process has an array of its own for what is replicated"
    axes = layout.in_axes if isinstance(layout.in_axes, tuple) else (layout.in_axes,)
    if any(isinstance(axis, (tuple, list, dict)) for axis in axes):
        return "its in_axes are trees, in a multi-process program"
    if use.is_called_by_keyword or isinstance(layout.out_axes, (list, dict)):
        return "it is called with keywords in a multi-process program"
    found = map_calls(use.module, use.site)
    if not found:
        return "its calls are not known, which pass the shards of one process"
    for module, call in found:
        callee = module.facts.callees[call]
        if not all(isinstance(fact, Mapped) and fact.site in use.site.places for fact in callee):
            return "another function may be called in its place"
        if any(isinstance(arg, ast.Starred) for arg in call.args):
            return "its arguments are unpacked in a call"
        if _is_mixed(use) and _unpacked(use, module, call) is None:
            return "some of its results are sharded, in a multi-process program"
        if any(isinstance(each, ast.Lambda) for each in module.functions_around(call)):
            return "it is called in a lambda"
    return ""


def _is_mixed(use: Use) -> bool:
    """Returns whether some results are replicated, which are global arrays, and others are not."""
    axes = use.known_layout.out_axes
    return isinstance(axes, tuple) and None in axes and any(axis is not None for axis in axes)


def _unpacked(use: Use, module: Module, call: ast.Call) -> tuple[ast.Assign, list[int]] | None:
    """Returns the statement that unpacks the results of a call, and which of them are sharded."""
    statement, axes = module.parent(call), use.known_layout.out_axes
    if not isinstance(statement, ast.Assign) or not isinstance(axes, tuple):
        return None
    target = statement.targets[0]
    is_plain = len(statement.targets) == 1 and isinstance(target, ast.Tuple)
    if not is_plain or len(target.elts) != len(axes):  # type: ignore[attr-defined]
        return None
    sharded = [i for i, axis in enumerate(axes) if axis is not None]
    names = [target.elts[i] for i in sharded]  # type: ignore[attr-defined]
    is_named = all(isinstance(name, (ast.Name, ast.Attribute)) for name in names)
    return (statement, sharded) if is_named else None


def write(use: Use, module: Module, call: ast.Call, mesh: str, editor: Editor) -> None:
    """Converts the sharded arguments and results of a call; replicated ones are global already."""
    texts = [editor.text(place) for _, place in arguments(editor.source, call)]
    whole = module.place(call)
    indent = editor.indent(whole.line)
    step = indent + editor.step
    axes = use.known_layout.out_axes
    is_wrapped = axes is not None and not _is_mixed(use) and axes != (None,) * len(_parts(axes))
    inside = step + editor.step if is_wrapped else step
    specs = [_spec(use, position + use.is_method) for position in range(len(texts))]
    given: list[str] = []
    at = 0
    while at < len(texts):
        end = at + 1
        while specs[at] is not None and end < len(texts) and specs[end] == specs[at]:
            end += 1
        if specs[at] is None:
            given.append(texts[at])
        else:
            several = f"({', '.join(texts[at:end])})"
            several, star = (texts[at], "") if end - at == 1 else (several, "*")
            args = [several, mesh, str(specs[at])]
            given.append(editor.folded_call(f"{star}{_TO_GLOBAL}", args, inside, len(inside) + 1))
        at = end
    function = editor.text(editor.source.place(call.func))
    used = whole.column + len(editor.rest_of_line(whole))
    if is_wrapped:
        inner = editor.folded_call(function, given, step, len(step) + 1)
        args = [inner, mesh, use.known_layout.out_specs(use.axis)]
        editor.replace(whole, editor.folded_call(_TO_LOCAL, args, indent, used))
        return
    editor.replace(whole, editor.folded_call(function, given, indent, used))
    unpacked = _unpacked(use, module, call) if _is_mixed(use) else None
    if unpacked is not None:
        _convert_after(use, module, *unpacked, mesh, editor)


def _convert_after(
    use: Use,
    module: Module,
    statement: ast.Assign,
    sharded: list[int],
    mesh: str,
    editor: Editor,
) -> None:
    """Makes the sharded results that a statement unpacks host-local, in a line below it."""
    names = [editor.source.segment(module.place(statement.targets[0].elts[i])) for i in sharded]  # type: ignore[attr-defined]
    axes = _parts(use.known_layout.out_axes)
    specs = [f"jax.P({', '.join([*['None'] * int(str(axes[i])), use.axis])})" for i in sharded]
    value = names[0] if len(names) == 1 else f"({', '.join(names)})"
    spec = specs[0] if len(set(specs)) == 1 else f"({', '.join(specs)})"
    indent = editor.indent(statement.lineno)
    target = ", ".join(names)
    text = editor.folded_call(
        _TO_LOCAL, [value, mesh, spec], indent, len(indent) + len(target) + len(" = ")
    )
    end = ends(module.place(statement))
    editor.insert(*end, f"\n{indent}{target} = {text}")


def _parts(axes: object) -> tuple[object, ...]:
    return axes if isinstance(axes, tuple) else (axes,)


def _spec(use: Use, position: int) -> str | None:
    """Returns the text of a sharded argument's spec, None for one that is static or replicated."""
    layout = use.known_layout
    if position in layout.static:
        return None
    axis = 0 if position in layout.merged else layout.in_axes_of(position)
    if axis is None:
        return None
    assert isinstance(axis, int)
    return f"jax.P({', '.join([*['None'] * axis, use.axis])})"
