"""A lambda around the mapped function that takes the device axes off and puts them on.

A lambda that is mapped itself is edited: ``lambda w, x: w * x`` becomes ``lambda w, x: w * x[0]``.
"""

from __future__ import annotations

import ast
import re

from pmapx._src.analysis.syntax import defaults, positional
from pmapx._src.codemod.decide.array_expressions import reduced_name
from pmapx._src.codemod.forms.mapped_function import MappedFunction
from pmapx._src.codemod.forms.shard_body import (
    adding,
    argument_names,
    by_name,
    call_of,
    fits,
    grouped,
    index_of,
    is_array_expression,
    is_read_early,
    out_axes,
    put,
    result_names,
    taken,
)
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.source.location import Place
from pmapx._src.source.rewriting.edits import starts


def lambda_around(use: Use, function: str, editor: Editor, indent: str) -> str:
    """Returns a lambda for shard_map that takes the axes off, calls the function, and puts them on.

    ``function`` is its text; with static arguments, the lambda around this one has them.
    """
    layout, mapped = use.known_layout, use.function
    # A lambda of which jax.vmap or a partial is mapped is another function.
    given_here = use.expression.args[:1] if isinstance(use.expression, ast.Call) else []
    own = mapped.node if mapped is not None else None
    at_site = own if isinstance(own, ast.Lambda) and own in given_here else None
    is_here = function != "function" and not use.takes_keywords
    is_vmapped = mapped is not None and mapped.is_vmapped
    if at_site is not None and is_here and not is_vmapped:
        text = _inlined(use, editor, at_site, indent)
        if text is not None:
            return text
    if re.match(r"\(*\s*lambda\b", function) and not function.startswith("("):
        function = f"({function})"
    early = ""
    if function != "function" and not use.is_made_again and is_read_early(use, function):
        early, function = f", function={function}", "function"
    if use.takes_keywords:
        first = "jax.tree.map(lambda x: x[0], {})".format
        head, given = "args, kwargs", [f"*{first('args')}", f"**{first('kwargs')}"]
    elif (layout.is_leading and not use.keywords) or use.names_before_others:
        given = [*use.names_before_others, "*jax.tree.map(lambda x: x[0], args)"]
        head = "*args"
    else:
        names = argument_names(use)
        head = ", ".join(name for i, name in enumerate(names) if i not in layout.static)
        axes = [None if i in layout.static else layout.in_axis(i) for i in range(len(names))]
        are_arrays = [_is_array(mapped, use, i) for i in range(len(names))]
        given = [
            taken(name, axis, use.axis, is_array=is_array)
            for name, axis, is_array in zip(names, axes, are_arrays, strict=True)
        ]
        if by_name(use, given) != given:
            given = by_name(use, given)
        elif not all(are_arrays):
            given = grouped(names, axes, lambda text, axis: taken(text, axis, use.axis), given)
    deeper = indent if out_axes(use) is None else indent + editor.hang
    call = call_of(function, given, editor, deeper)
    return editor.function(head + early, _result(use, call, editor, indent), indent)


def _result(use: Use, call: str, editor: Editor, indent: str) -> str:
    """Returns the text of a call's results with their axes."""
    axes = out_axes(use)
    if isinstance(axes, tuple):
        results = result_names(len(axes))
        parts = grouped(results, axes, lambda text, axis: put(text, axis, use.axis))
        head = f"(lambda {', '.join(results)}: "
        inside = ", ".join(parts) + ("," if len(parts) == 1 else "")
        several = editor.folded(f"({inside})", indent, len(indent) + len(f"{head}, "))
        used = len(indent) + len("lambda *args: ,")
        return editor.folded_call(f"{head}{several})", [f"*{call}"], indent, used)
    if axes is None:
        return call
    return editor.folded_call(
        "jax.tree.map", [adding(use, axes), call], indent, len(indent) + len("lambda *args: ,")
    )


def _is_array(mapped: MappedFunction | None, use: Use, position: int) -> bool:
    names = use.names
    if mapped is None or names is None or mapped.parameters is None:
        return False
    return position < len(mapped.parameters) and use.is_array(mapped.parameters[position])


def _inlined(use: Use, editor: Editor, node: ast.Lambda, indent: str) -> str | None:
    """Returns a lambda of the site with the axes taken off where it uses its arguments.

    None if it would be longer than a lambda around it: a tree that is used more than once.
    """
    layout, mapped = use.known_layout, use.function
    assert mapped is not None
    given, names = node.args, positional(node.args)
    is_plain = not (given.vararg or given.kwarg or given.kwonlyargs or given.defaults)
    axes = out_axes(use)
    if not is_plain or isinstance(axes, (list, dict)) or mapped.taken:
        return None
    if isinstance(axes, tuple) and not (
        isinstance(node.body, ast.Tuple)
        and fits(node.body, axes)
        and all(axis is None or isinstance(axis, (int, str)) for axis in axes)
    ):
        return None
    sharded = [name for i, name in enumerate(names) if i not in layout.static]
    if sharded != names != argument_names(use):
        return None
    if isinstance(layout.in_axes, tuple) and len(layout.in_axes) != len(names):
        return None
    reduced = reduced_name(use.module, node.body, names)
    if reduced in names == sharded:
        axis = layout.in_axis(names.index(reduced))
        if axis is not None and axis == axes:
            # The axis stays on.
            return editor.text(use.module.place(node))
    place = use.module.place(node.body)
    changes = []
    inner = {
        name
        for part in ast.walk(node.body)
        if isinstance(part, (ast.Lambda, ast.FunctionDef))
        for name in defaults(part.args)
    }
    named = [part for part in ast.walk(node.body) if isinstance(part, ast.Name)]
    bound = {part.id for part in named if not isinstance(part.ctx, ast.Load)}
    for name in sharded:
        axis = layout.in_axis(names.index(name))
        uses = [part for part in named if part.id == name]
        if axis is None or not uses:
            continue
        is_array = use.is_array(name)
        if name in inner | bound or (not is_array and len(uses) > 1):
            return None
        changes += [
            (use.module.place(each), taken(name, axis, use.axis, is_array=is_array))
            for each in uses
        ]
    if any(isinstance(part, ast.JoinedStr) for part in ast.walk(node.body)):
        return None
    if isinstance(axes, tuple) and isinstance(node.body, ast.Tuple):
        parts = [
            _with_axis(use, part, editor.with_changes(use.module.place(part), changes), axis)
            for part, axis in zip(node.body.elts, axes, strict=True)
        ]
        body = f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    else:
        body = _with_axis(use, node.body, editor.with_changes(place, changes), axes)
    head = editor.text(Place(place.path, *starts(use.module.place(node)), *starts(place)))
    if head.count("(") != head.count(")"):
        # A parenthesis around the body opens in the head.
        return None
    # The lambda around this one has those that are static.
    head = head if sharded == names else f"lambda {', '.join(sharded)}: "
    return head + editor.folded(body, indent, len(indent) + len(head) + 1)


def _with_axis(use: Use, node: ast.expr, text: str, axis: object) -> str:
    if axis is None:
        return text
    index = index_of(axis, "None")
    if is_array_expression(use, node) and not use.known_layout.static:
        needs = not isinstance(node, (ast.Call, ast.Name, ast.Attribute, ast.Subscript))
        return f"({text})[{index}]" if needs else f"{text}[{index}]"
    return f"jax.tree.map({adding(use, axis)}, {text})"
