"""The mapped body on one device's shards: without the device axis that stacked arrays have.

What ``jax.shard_map`` passes has an axis of size 1 where ``jax.pmap`` took it off. It is taken off
and put on in the function itself, if nothing else calls it, or in a lambda around it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Sequence

from pmapx._src.codemod.decide import fields
from pmapx._src.codemod.decide.array_expressions import ArrayExpressions
from pmapx._src.codemod.decide.specs import key_text
from pmapx._src.codemod.forms.late_names import is_bound_again
from pmapx._src.codemod.forms.mapped_function import (
    is_mapped_once,
    takes_its_name,
)
from pmapx._src.codemod.forms.python_numbers import may_return_numbers
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.call_tokens import on_one_line
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.text.name_counts import is_named_once


def obstacle(use: Use) -> str:
    """Returns why a use's arguments and results cannot be converted."""
    layout, mapped = use.known_layout, use.function
    if isinstance(layout.out_axes, (list, dict)):
        return "its out_axes is not a tuple"
    if use.needs_names and use.names is None:
        return "the number of its arguments is not known"
    if use.is_called_by_keyword and not (use.can_name_all or use.takes_keywords):
        return "it is called with keywords that name no positional parameter"
    if mapped is not None and isinstance(mapped.node, ast.AsyncFunctionDef):
        return "it is a coroutine"
    return ""


def converts(use: Use) -> bool:
    """Returns whether an argument or a result has an axis that the body does not have."""
    return _converts_arguments(use) or out_axes(use) is not None


def out_axes(use: Use) -> object:
    """Returns the axes that the results of the body do not have."""
    layout = use.known_layout
    if layout.is_single_result_merged:
        return None
    if isinstance(layout.out_axes, tuple):
        merged = layout.merged_results
        axes = tuple(None if i in merged else axis for i, axis in enumerate(layout.out_axes))
        if all(axis is None for axis in axes):
            return None
        return 0 if all(axis == 0 and axis is not None for axis in axes) else axes
    return layout.out_axes


def _converts_arguments(use: Use) -> bool:
    layout = use.known_layout
    if isinstance(layout.in_axes, tuple) or layout.merged:
        count = len(use.names or layout.in_axes)  # type: ignore[arg-type]
        return any(layout.in_axis(i) is not None for i in range(count) if i not in layout.static)
    return layout.in_axes is not None


def is_edited(use: Use) -> bool:
    """Returns whether the function itself is edited, and not wrapped in a lambda."""
    return is_editable(use) and (use.site.kind == "decorator" or converts(use))


def has_own_body(use: Use) -> bool:
    """Returns whether its body can be edited, or is a lambda at the site."""
    mapped = use.function
    is_lambda = mapped is not None and isinstance(mapped.node, ast.Lambda)
    return is_lambda or is_editable(use)


def is_editable(use: Use) -> bool:
    """Returns whether the function is in this file, and nothing but this use has it."""
    mapped = use.function
    if use.takes_keywords:
        return False
    if mapped is None or mapped.function.module is not use.module:
        return False
    node, layout = mapped.node, use.known_layout
    if not isinstance(node, ast.FunctionDef) or use.names is None or mapped.is_vmapped:
        return False
    if not set(use.names) <= set(mapped.parameters or []):
        return False
    if any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(node)):
        return False
    if use.site.kind == "decorator":
        inner = use.grid.inner.place if use.grid is not None else None
        places = [use.module.place(each) for each in node.decorator_list]
        if [place for place in places if place != inner][-1] != use.site.place:
            return False
    elif (
        not mapped.is_only_jitted
        or not (
            is_named_once(use.module, node, node.name)
            or takes_its_name(use.module, use.expression, node)
        )
        or not is_mapped_once(use.module, use.site, node)
        or not _is_named_for_the_map(use, node)
    ):
        return False
    if isinstance(layout.out_axes, (list, dict)):
        return False
    axes = out_axes(use)
    return not isinstance(axes, tuple) or all(
        each.value is not None and fits(each.value, axes) for each in mapped.returns
    )


def fits(value: ast.expr, axes: tuple[object, ...]) -> bool:
    if not isinstance(value, ast.Tuple):
        return True
    return len(value.elts) == len(axes) and not any(isinstance(e, ast.Starred) for e in value.elts)


def _is_named_for_the_map(use: Use, node: ast.FunctionDef) -> bool:
    """Returns whether a variable with the function, or a partial of it, is read by the map only.

    In ``one = partial(self.run, n)``, ``one`` may also be given to ``jax.vmap``.
    """
    module, call = use.module, use.expression
    given = call.args[0] if isinstance(call, ast.Call) and call.args else None
    around = module.functions_around(call)
    own = next(iter(module.functions_around(node)), node)
    if isinstance(given, ast.Attribute):
        is_read = (n for n in module.nodes if isinstance(n, ast.Attribute) and n.attr == given.attr)
        loads = [each for each in is_read if isinstance(each.ctx, ast.Load)]
        return given.attr == node.name or len(loads) == 1
    if not isinstance(given, ast.Name) or (given.id == node.name and own in (*around, node)):
        return True
    # In the function that makes it, its name is another.
    parts = {*ast.walk(next(iter(around), module.source.tree))} - {*ast.walk(own)}
    names = [n for n in parts if isinstance(n, ast.Name) and n.id == given.id]
    statement = module.statement(call)
    end = statement.end_lineno or 0
    # ``step = jax.pmap(step)``: what is read below is the map.
    read = [n for n in names if isinstance(n.ctx, ast.Load)]
    is_bound_again = any(n not in read and statement.lineno <= n.lineno <= end for n in names)
    return sum(not is_bound_again or n.lineno <= end for n in read) == 1


# Texts


def taken(name: str, axis: object, quoted: str, *, is_array: bool = False) -> str:
    """Returns the text of an argument without its device axis.

    >>> taken("batch", 0, "'i'"), taken("key", 0, "'i'", is_array=True)
    ('jax.tree.map(lambda x: x[0], batch)', 'key[0]')
    """
    return _changed(name, axis, quoted, "0", is_array=is_array)


def put(text: str, axis: object, quoted: str, *, is_array: bool = False) -> str:
    """Returns the text of a result with its device axis."""
    return _changed(text, axis, quoted, "None", is_array=is_array)


def _changed(text: str, axis: object, quoted: str, at: str, *, is_array: bool) -> str:
    if axis is None:
        return text
    if isinstance(axis, set):
        without = functools.partial(_changed, axis=0, quoted=quoted, at=at, is_array=False)
        return fields.read(axis).with_each(text, without)
    if isinstance(axis, (tuple, list)):
        parts = [
            _changed(f"{text}[{i}]", each, quoted, at, is_array=False)
            for i, each in enumerate(axis)
        ]
        inside = ", ".join(parts)
        if isinstance(axis, list):
            return f"[{inside}]"
        return f"({inside}{',' if len(parts) == 1 else ''})"
    if isinstance(axis, dict):
        parts = [
            f"{key_text(key, quoted)}: "
            f"{_changed(f'{text}[{key_text(key, quoted)}]', each, quoted, at, is_array=False)}"
            for key, each in axis.items()
        ]
        return f"{{{', '.join(parts)}}}"
    index = index_of(axis, at)
    return f"{text}[{index}]" if is_array else f"jax.tree.map(lambda x: x[{index}], {text})"


def index_of(axis: object, at: str) -> str:
    """Returns the index that takes an axis off, or puts it on."""
    if isinstance(axis, str):
        return ", ".join([at] * len(axis.split(", ")))
    assert isinstance(axis, int)
    return ", ".join([*[":"] * axis, at])


def call_of(function: str, given: Sequence[str], editor: Editor, indent: str, used: int = 1) -> str:
    """Returns the call of a function by its text; of a partial, with the arguments that it has.

    ``used`` columns of its line are taken.
    """
    called, arguments = _with_arguments(function, given, editor, indent)
    called = editor.moved(called, indent)
    return editor.folded_call(called, arguments, indent, len(indent) + used)


def _with_arguments(
    function: str, given: Sequence[str], editor: Editor, indent: str
) -> tuple[str, list[str]]:
    """Returns a function and its arguments; of a partial, the one inside, and those that it has."""
    deeper = indent + editor.hang
    given = [editor.folded(text, deeper, len(deeper) + 1) for text in given]
    try:
        node = ast.parse(function, mode="eval").body
    except SyntaxError:
        node = None
    is_partial = isinstance(node, ast.Call) and re.fullmatch(
        r"(\w+\.)?partial", ast.unparse(node.func)
    )
    if is_partial and isinstance(node, ast.Call) and node.args and "#" not in function:
        parts = [ast.get_source_segment(function, part) for part in (*node.args, *node.keywords)]  # type: ignore[union-attr]
        texts = [on_one_line(part or "") for part in parts]
        if not any(text[:1] in ("", "*") or '"""' in text or "'''" in text for text in texts):
            texts = [editor.folded(text, deeper, len(deeper) + 1) for text in texts]
            by_keyword = [text for text in given if re.match(r"\w+=", text)]
            first = [text for text in given if text not in by_keyword]
            bound, keywords = texts[1 : len(node.args)], texts[len(node.args) :]
            called = f"({texts[0]})" if isinstance(node.args[0], ast.Lambda) else texts[0]
            return called, [*bound, *first, *keywords, *by_keyword]
    return function, list(given)


def by_name(use: Use, given: Sequence[str]) -> list[str]:
    """Returns arguments for the function, by name where they are not at their position."""
    if use.function is None or use.function.parameters is None or use.names is None:
        return list(given)
    own = use.function.parameters[: use.function.by_position]
    count = next((i for i, n in enumerate(use.names) if own[i : i + 1] != [n]), len(given))
    if not use.keywords:
        # Names that are not the function's own.
        count = max(count, len(own))
    named = zip(use.names[count:], given[count:], strict=True)
    return [*given[:count], *(f"{name}={text}" for name, text in named)]


def is_read_early(use: Use, function: str) -> bool:
    """Returns whether the function's text means something else inside a lambda."""
    return is_bound_again(use) or "super()" in function


def result_names(count: int) -> list[str]:
    """Returns names for the results of a call."""
    return [f"result{i}" if count > 3 else "abc"[i] for i in range(count)]


def grouped(
    names: Sequence[str],
    axes: Sequence[object],
    change: Callable[[str, object], str],
    alone: Sequence[str] | None = None,
) -> list[str]:
    """Returns values, each changed by its axis; those in a row that have the same, together.

    ``alone`` are the texts of each on its own, if these are others.
    """
    found: list[str] = []
    start = 0
    while start < len(names):
        axis, end = axes[start], start + 1
        while end < len(names) and isinstance(axis, int) and axes[end] == axis:
            end += 1
        if axis is None:
            found.append(names[start])
        elif end == start + 1:
            found.append(change(names[start], axis) if alone is None else alone[start])
        else:
            together = ", ".join(names[start:end])
            found.append(f"*{change(f'({together})', axis)}")
        start = end
    return found


def adding(use: Use, axis: object) -> str:
    """Returns the lambda that puts an axis on each leaf of the results."""
    if may_return_numbers(use.function):
        axes = tuple(range(len(axis.split(", ")))) if isinstance(axis, str) else axis
        return f"lambda x: {use.numpy}.expand_dims(x, {axes})"
    return f"lambda x: x[{index_of(axis, 'None')}]"


def argument_names(use: Use) -> list[str]:
    """Returns names for the arguments that the text of the function does not use itself."""
    assert use.names is not None
    call = use.expression
    used = {"jax", "mesh", use.numpy.partition(".")[0]}
    used |= {"function"} if use.is_made_again else set()
    if isinstance(call, ast.Call) and call.args and use.site.kind != "decorator":
        parts = list(ast.walk(call.args[0]))
        bound = {part.arg for part in parts if isinstance(part, ast.arg)}
        used |= {part.id for part in parts if isinstance(part, ast.Name)} - bound
    return [f"{name}_" if name in used else name for name in use.names]


def is_array_expression(use: Use, node: ast.expr) -> bool:
    """Returns whether an expression of the mapped function is surely one array."""
    mapped = use.function
    if mapped is None:
        return False
    arrays = frozenset(filter(use.is_array, mapped.parameters or ()))
    return ArrayExpressions(mapped.function.module, mapped.node, arrays).is_array(node)


def static_bound(use: Use, function: str, names: Sequence[str], editor: Editor, indent: str) -> str:
    """Returns the function with its static arguments, which shard_map does not take."""
    layout, known = use.known_layout, use.function
    first = next((i for i in range(len(names)) if i not in layout.static), len(names))
    others = [i for i in layout.static if i > first]
    # Those behind the others are given by name.
    is_last = others == list(range(len(names) - len(others), len(names)))
    own = known.parameters if known is not None and not known.node.args.posonlyargs else None
    is_named = not others or (own or [])[: len(names)] == list(names)
    if is_last and is_named and use.module.env.find("functools"):
        given = [*names[:first], *(f"{names[i]}={names[i]}" for i in others)]
        called, bound = _with_arguments(function, given, editor, indent)
        return editor.folded_call("functools.partial", [called, *bound], indent, len(indent) + 1)
    head = ", ".join(name for i, name in enumerate(names) if i not in layout.static)
    if re.match(r"\s*lambda\b", function):
        function = f"({function})"
    return f"lambda {head}: {call_of(function, by_name(use, names), editor, indent)}"
