"""Calls of a map in a multi-process program: host-local arrays become global ones, and back.

Under pmap each process passes its own shards. ``jax.jit`` of ``jax.shard_map`` takes arrays of all
processes, which ``multihost_utils`` makes of them without a copy; it leaves global arrays alone.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Sequence

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Bound, Function, Mapped
from pmapx._src.codemod.decide import fields, global_state
from pmapx._src.codemod.decide.map_calls import map_calls
from pmapx._src.codemod.decide.specs import LOCAL
from pmapx._src.codemod.forms import shard_body
from pmapx._src.codemod.forms.given_numbers import is_always_number, is_number_unknown
from pmapx._src.codemod.forms.mapped_function import takes_its_name
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.call_tokens import arguments
from pmapx._src.codemod.text.editor import Editor, fitting
from pmapx._src.source.rewriting.edits import ends

IMPORT = "from jax.experimental import multihost_utils"
# More calls than these are converted in one place.
MOST_CALLS = 2
MOST_WITHOUT_MESH = 8
_TO_GLOBAL = "multihost_utils.host_local_array_to_global_array"
_TO_LOCAL = "multihost_utils.global_array_to_host_local_array"


def obstacle(use: Use) -> str:
    """Returns why a map of a multi-process program cannot be given global arrays."""
    if not is_converted(use):
        return ""
    layout = use.known_layout
    axes = (*_parts(layout.in_axes), *_parts(layout.out_axes))
    if any(isinstance(axis, (tuple, list, dict)) for axis in axes):
        return "its axes are trees, in a multi-process program"
    above = use.module.parent(use.module.parent(use.expression))
    if use.site.kind != "decorator" and isinstance(above, ast.ClassDef):
        return "it is a method, in a multi-process program"
    return ""


def is_converted(use: Use) -> bool:
    """Returns whether its arguments are host-local shards of global arrays."""
    return use.around.in_processes and use.known_layout.devices != LOCAL


def is_at_site(use: Use) -> bool:
    """Returns whether a lambda at the site converts for all calls: they are not all known, or many.

    Otherwise each call does.
    """
    if not is_converted(use) or use.conversion:
        return bool(use.conversion)
    found = map_calls(use.module, use.site)
    if (
        use.takes_keywords
        or (use.known_layout.devices and not (use.near_mesh and _are_near(use, found)))
        or not use.is_axis_constant
        or _has_far_specs(use, found)
        or not 0 < len(found) <= (MOST_CALLS if _may_name_mesh(use) else MOST_WITHOUT_MESH)
    ):
        return True
    return not all(_is_plain(use, module, call) for module, call in found)


def _has_far_specs(use: Use, found: Sequence[tuple[Module, ast.Call]]) -> bool:
    """Returns whether a state has specs by field that are no variable which all calls see."""
    axes = (*_parts(use.known_layout.in_axes), *_parts(use.known_layout.out_axes))
    is_variable = not fields.of_arguments(axes) and _are_near(use, found)
    return not is_variable and any(isinstance(axis, set) for axis in axes)


def _are_near(use: Use, found: Sequence[tuple[Module, ast.Call]]) -> bool:
    """Returns whether all calls are in the block that makes the map, or in functions inside."""
    home = next(iter(use.module.functions_around(use.node)), None)
    above = use.module.parent(use.expression)
    while isinstance(above, (ast.expr, ast.keyword, ast.Assign, ast.Return, ast.Expr)):
        above = use.module.parent(above)
    # What is made in a branch is not there behind it.
    first, last = getattr(home, "lineno", 0), getattr(above, "end_lineno", 1 << 30)
    return all(module is use.module and first <= call.lineno <= last for module, call in found)


def _may_name_mesh(use: Use) -> bool:
    """Returns whether a mesh can be made for all calls: not above a decorator, at import."""
    return use.site.kind != "decorator" or bool(
        use.module.functions_around(use.module.parent(use.expression))
    )


def _is_plain(use: Use, module: Module, call: ast.Call) -> bool:
    """Returns whether a call is of this map alone, with arguments and results that are seen."""
    callee = module.facts.callees[call]
    own = use.function
    if not all(
        (isinstance(fact, Mapped) and fact.site in use.site.places)
        # ``self.step = jax.pmap(self.step)``: what is called is the map.
        or (
            own is not None
            and isinstance(own.node, ast.FunctionDef)
            and _function(fact) is own.node
            and takes_its_name(use.module, use.expression, own.node)
        )
        for fact in callee
    ):
        return False
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        return False
    axes = use.known_layout.in_axes
    if isinstance(axes, tuple) and len(call.args) + len(call.keywords) + use.is_method > len(axes):
        # A method of this name has a map of its own in another class.
        return False
    if _is_mixed(use) and _unpacked(use, module, call) is None:
        return False
    return not any(isinstance(each, ast.Lambda) for each in module.functions_around(call))


def _function(fact: object) -> ast.AST | None:
    if isinstance(fact, Bound):
        return fact.function.node
    return fact.node if isinstance(fact, Function) else None


def _is_mixed(use: Use) -> bool:
    """Returns whether some results are state that stays global, and others are not."""
    axes = use.known_layout.out_axes
    if not keeps_state(use):
        return False
    return isinstance(axes, tuple) and None in axes and any(axis is not None for axis in axes)


def keeps_state(use: Use) -> bool:
    """Returns whether its replicated results stay global: the next call takes them as they are."""
    if use.replicated:
        return True
    calls = map_calls(use.module, use.site)
    return bool(calls) and all(global_state.carried(module, call) for module, call in calls)


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
    place = module.place(call)
    indent = editor.indent(place.line)
    given = [
        (None if use.calls_in_order else name, editor.text(place), _position(use, name, position))
        for position, (name, place) in enumerate(arguments(editor.source, call))
    ]
    function = editor.text(editor.source.place(call.func))
    used = place.column + len(editor.rest_of_line(place))
    text = _converted(use, function, given, mesh, editor, indent, used, call)
    is_long = "\n" in text and place.column + len(text.partition("\n")[0]) > editor.width
    if is_long and isinstance(module.parent(call), ast.Assign) and '"""' not in text:
        # The names that it is assigned to leave it no room.
        text = editor.bracketed(text, indent)
    names = _assigned(module, call, editor) if _is_wrapped(use) and "\n" in text else []
    if names:
        args = functools.partial(_global_arguments, use, given, call, mesh, editor)
        spec = use.known_layout.out_specs(use.axis)
        several = _call(function, args, editor, indent, used)
        several += _converted_names(names, spec, mesh, editor, indent)
        text = min(text, several, key=lambda each: each.count("\n"))
    editor.replace(place, text)
    if _is_mixed(use) and (unpacked := _unpacked(use, module, call)) is not None:
        _convert_after(use, module, *unpacked, mesh, editor)


def _assigned(module: Module, call: ast.Call, editor: Editor) -> list[str]:
    """Returns the names that a statement of its own assigns a call to, or none."""
    statement = module.parent(call)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return []
    target, place = statement.targets[0], module.place(statement)
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [editor.source.segment(module.place(part)) for part in parts]
    before = editor.source.line(place.line)[: place.column]
    rest = editor.source.line(place.end_line)[place.end_column :]
    is_alone = ends(place) == ends(module.place(call)) and not (before + rest).strip()
    is_named = all(isinstance(part, (ast.Name, ast.Attribute)) for part in parts)
    return names if is_alone and is_named and len({*names, "_"}) > len(names) else []


def _position(use: Use, name: str | None, position: int) -> int:
    """Returns the position of the parameter that an argument of a call is for."""
    return position + use.is_method if name is None else (use.names or []).index(name)


def at_site(use: Use, editor: Editor, indent: str) -> tuple[str, str]:
    """Returns the parameters and the body of a function that converts for the jitted one."""
    mesh = use.mesh[0] + (f"({', '.join(use.mesh[1:])})" if use.mesh[1:] else "")
    mesh = use.near_mesh or mesh
    layout, names = use.known_layout, use.names
    deeper = indent + editor.hang
    if use.takes_keywords or names is None or (layout.is_leading and not use.is_called_by_keyword):
        starred = {"*": "args", "**": "kwargs"} if use.takes_keywords else {"*": "args"}
        inner = deeper if _is_wrapped(use) else indent
        spec = f"jax.P({use.axis})"
        text = _call(
            "jitted",
            lambda step: [
                _conversion(star + _TO_GLOBAL, name, mesh, spec, editor, step, len(step) + 1)
                for star, name in starred.items()
            ],
            editor,
            inner,
            len(inner) + 1,
        )
        head = ", ".join(star + name for star, name in starred.items())
        if _is_wrapped(use):
            text = _host_local(use, text, mesh, editor, indent, len(indent) + 1)
    else:
        head = ", ".join(names)
        parts = [(None, name, position) for position, name in enumerate(names)]
        text = _converted(use, "jitted", parts, mesh, editor, indent, len(indent) + 1)
    if _is_mixed(use):
        axes = _parts(layout.out_axes)
        results = shard_body.result_names(len(axes))
        converted = shard_body.grouped(
            results,
            axes,
            lambda tree, axis: _conversion(
                _TO_LOCAL, tree, mesh, _axis_spec(use, axis), editor, deeper, len(deeper) + 1
            ),
        )
        several = editor.folded_call("", converted, indent, len(deeper) + 1)
        unpack = f"(lambda {', '.join(results)}: {several})"
        first = f"{unpack}(*{text}".splitlines()[unpack.count("\n")]
        is_long = len(first) > editor.width
        deeper_text = text.replace("\n", f"\n{editor.hang}")
        text = editor.call(unpack, [f"*{deeper_text}"], indent) if is_long else f"{unpack}(*{text})"
    return head, text


def _converted(
    use: Use,
    function: str,
    given: Sequence[tuple[str | None, str, int]],
    mesh: str,
    editor: Editor,
    indent: str,
    used: int,
    only: ast.Call | None = None,
) -> str:
    """Returns a call with its sharded arguments global, and its results host-local."""
    args = functools.partial(_global_arguments, use, given, only, mesh, editor)
    if not _is_wrapped(use):
        return _call(function, args, editor, indent, used)
    if not re.search(r"\'\'\'|\"\"\"|\\\n", function):
        # It is one step deeper than it was.
        function = function.replace("\n", f"\n{editor.hang}")
    step = indent + editor.hang
    inner = _call(function, args, editor, step, len(step) + 1)
    return _host_local(use, inner, mesh, editor, indent, used)


def _call(
    function: str, args: Callable[[str], list[str]], editor: Editor, indent: str, used: int
) -> str:
    """Returns a call with arguments that ``args`` gives for their indentation.

    Where lines are filled, a single conversion begins on the line of the call.
    """
    text = editor.folded_call(function, args(indent + editor.hang), indent, used)
    if editor.is_filled and "\n" in text:
        first, *others = args(indent)
        head = first.partition("\n")[0]
        is_one = not others and "\n" in first and _TO_GLOBAL in head
        if is_one and used + len(f"{function}({head}") <= editor.width:
            return editor.hugged_call(function, [first], indent)
    return text


def _global_arguments(
    use: Use,
    given: Sequence[tuple[str | None, str, int]],
    only: ast.Call | None,
    mesh: str,
    editor: Editor,
    indent: str,
) -> list[str]:
    """Returns the arguments of a call, with those in a row that are sharded converted together.

    ``only`` is the call in the source, None where any call of the map may give them.
    """
    specs = [spec_of(use, position, only) for _, _, position in given]
    unknown = [is_number_unknown(use, position, only) for *_, position in given]
    for at in [i for i, spec in enumerate(specs) if spec == "jax.P()" and not unknown[i]]:
        # Between others that may be numbers, it is converted with them.
        unknown[at] = any(unknown[at - 1 : at]) and any(unknown[at + 1 : at + 2])
    args: list[str] = []
    at = 0
    while at < len(given):
        end = at + 1
        name, text, _ = given[at]
        while name is None and end < len(given) and given[end][0] is None and specs[at]:
            if specs[end] is None or unknown[at] != unknown[end]:
                break
            end += 1
        head, spec = f"{name}=" if name is not None else "", specs[at]
        if spec is None:
            args.append(head + text)
        else:
            if end - at > 1:
                deeper = indent + editor.hang
                texts = [each for _, each, _ in given[at:end]]
                head, text = "*", editor.folded_call("", texts, deeper, len(deeper) + 1)
            if len(set(specs[at:end])) > 1:
                spec = f"({', '.join(map(str, specs[at:end]))})"
            if unknown[at]:
                args.append(_of_arrays(head, text, mesh, editor, indent))
            else:
                used = len(indent) + 1
                args.append(_conversion(head + _TO_GLOBAL, text, mesh, spec, editor, indent, used))
        at = end
    return args


def _of_arrays(head: str, tree: str, mesh: str, editor: Editor, indent: str) -> str:
    """Returns a tree with its arrays global; numbers of Python's stay as they are."""
    deeper = indent + editor.hang
    leaf = _conversion(f"{deeper}else {_TO_GLOBAL}", "x", mesh, "jax.P()", editor, deeper, 0)
    leaf = f"lambda x: x\n{deeper}if isinstance(x, (int, float))\n{leaf}"
    return editor.call(f"{head}jax.tree.map", [leaf, tree], indent)


def _is_wrapped(use: Use) -> bool:
    """Returns whether all results of a call are made host-local."""
    axes = _parts(use.known_layout.out_axes)
    is_state = keeps_state(use) and axes == (None,) * len(axes)
    return not is_state and not _is_mixed(use)


def _host_local(use: Use, call: str, mesh: str, editor: Editor, indent: str, used: int) -> str:
    """Returns the text of a call whose results are host-local."""
    spec = use.known_layout.out_specs(use.axis)
    return _conversion(_TO_LOCAL, call, mesh, spec, editor, indent, used)


def _conversion(
    function: str, tree: str, mesh: str, spec: str, editor: Editor, indent: str, used: int
) -> str:
    """Returns the text of a conversion, with a mesh that may have to be made there."""
    deeper = indent + editor.hang
    spec = fitting(spec, editor, len(deeper))
    tree, mesh, spec = (editor.folded(text, deeper, len(deeper) + 1) for text in (tree, mesh, spec))
    if editor.is_filled and "\n" in tree:
        # What follows a call of several lines stands behind it, if it fits.
        text = f"{tree}, {mesh}, {spec})"
        if "\n" not in mesh + spec and len(text.rpartition("\n")[2]) + 2 <= editor.width:
            return f"{function}(\n{deeper}{text}"
    return editor.folded_call(function, [tree, mesh, spec], indent, used)


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
    specs = [_axis_spec(use, axes[i]) for i in sharded]
    spec = specs[0] if len(set(specs)) == 1 else f"({', '.join(specs)})"
    text = _converted_names(names, spec, mesh, editor, editor.indent(statement.lineno))
    editor.insert(*ends(module.place(statement)), text)


def _converted_names(
    names: Sequence[str], spec: str, mesh: str, editor: Editor, indent: str
) -> str:
    """Returns a line that makes what was assigned to names host-local."""
    target = ", ".join(names)
    value = target if len(names) == 1 else f"({target})"
    used = len(indent) + len(target) + len(" = ")
    text = _conversion(_TO_LOCAL, value, mesh, spec, editor, indent, used)
    if used + len(text.partition("\n")[0]) > editor.width:
        text = editor.bracketed(text, indent)
    return f"\n{indent}{target} = {text}"


def _parts(axes: object) -> tuple[object, ...]:
    return axes if isinstance(axes, tuple) else (axes,)


def spec_of(use: Use, position: int, only: ast.Call | None = None) -> str | None:
    """Returns the text of an argument's spec, None if it is static, a number, or global already."""
    layout = use.known_layout
    if position in layout.static:
        return None
    axis = 0 if position in layout.merged else layout.in_axes_of(position)
    if axis is None:
        # Replicated state is global already, unless it is placed on the local part of its devices.
        is_global = position in use.replicated or _is_given_global(use, position)
        is_here = is_global and not layout.devices
        return None if is_here or is_always_number(use, position, only) else "jax.P()"
    return _axis_spec(use, axis)


def _is_given_global(use: Use, position: int) -> bool:
    """Returns whether every call gives state that another one left global."""
    given = [
        (module, call.args[position - use.is_method : position - use.is_method + 1])
        for module, call in map_calls(use.module, use.site)
    ]
    return bool(given) and all(
        bool(args) and global_state.is_global(module, args[0]) for module, args in given
    )


def _axis_spec(use: Use, axis: object) -> str:
    if isinstance(axis, set):
        return fields.read(axis).text(use.axis)
    assert isinstance(axis, int)
    return f"jax.P({', '.join([*['None'] * axis, use.axis])})"
