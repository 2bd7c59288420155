"""Calls of a map in a multi-process program: host-local arrays become global ones, and back.

Under pmap each process passes its own shards. ``jax.jit`` of ``jax.shard_map`` takes arrays of all
processes, which ``multihost_utils`` makes of them without a copy; it leaves global arrays alone.
"""

from __future__ import annotations

import ast

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Mapped
from pmapx._src.codemod.decide.map_calls import map_calls
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.call_tokens import arguments
from pmapx._src.codemod.text.editor import Editor

IMPORT = "from jax.experimental import multihost_utils"
_TO_GLOBAL = "multihost_utils.host_local_array_to_global_array"
_TO_LOCAL = "multihost_utils.global_array_to_host_local_array"


def obstacle(use: Use) -> str:
    """Returns why the calls of a map cannot be given global arrays."""
    if not use.around.in_processes:
        return ""
    layout = use.known_layout
    if layout.devices:
        return "each process has devices of its own"
    if use.is_called_by_keyword or isinstance(layout.out_axes, (list, dict)):
        return "it is called with keywords in a multi-process program"
    found = map_calls(use.module, use.site)
    if not found:
        return "its calls are not known, which pass the shards of one process"
    for module, call in found:
        callee = module.facts.callees[call]
        if not all(isinstance(fact, Mapped) and fact.site in use.site.places for fact in callee):
            return "another function may be called in its place"
        if not converts_all(use) and any(isinstance(arg, ast.Starred) for arg in call.args):
            return "its arguments are unpacked in a call"
        if any(isinstance(each, ast.Lambda) for each in module.functions_around(call)):
            return "it is called in a lambda"
    return ""


def converts_all(use: Use) -> bool:
    layout = use.known_layout
    if layout.static:
        return False
    return layout.in_axes == 0 or (
        isinstance(layout.in_axes, tuple) and all(axis == 0 for axis in layout.in_axes)
    )


def changes_result(use: Use) -> bool:
    """Returns whether a result is sharded, so that a process has only a part of it."""
    axes = use.known_layout.out_axes
    return any(axis is not None for axis in axes) if isinstance(axes, tuple) else axes is not None


def write(use: Use, module: Module, call: ast.Call, mesh: str, editor: Editor) -> None:
    """Converts the sharded arguments and results of a call."""
    layout, axis = use.known_layout, use.axis
    places = [place for _, place in arguments(editor.source, call)]
    whole = module.place(call)
    indent = editor.indent(whole.line)
    if not places:
        return
    if converts_all(use) and len(places) > 1:
        several = ", ".join(editor.text(place) for place in places)
        given = [f"*{_TO_GLOBAL}(({several}), {mesh}, jax.P({axis}))"]
    else:
        given = []
        for position, place in enumerate(places):
            text = editor.text(place)
            at = position + use.is_method
            whole_axis = layout.in_axes[at] if isinstance(layout.in_axes, tuple) else layout.in_axes
            if at in layout.merged:
                whole_axis = 0
            if whole_axis is not None and at not in layout.static:
                assert isinstance(whole_axis, int)
                spec = f"jax.P({', '.join([*['None'] * whole_axis, axis])})"
                text = f"{_TO_GLOBAL}({text}, {mesh}, {spec})"
            given.append(text)
    function = editor.text(editor.source.place(call.func))
    used = whole.column + len(editor.rest_of_line(whole))
    if not changes_result(use):
        editor.replace(whole, editor.folded_call(function, given, indent, used))
        return
    inner = editor.folded_call(function, given, indent + editor.step, len(indent + editor.step) + 1)
    args = [inner, mesh, layout.out_specs(axis)]
    editor.replace(whole, editor.folded_call(_TO_LOCAL, args, indent, used))
