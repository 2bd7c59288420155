"""A map in a map as one map over a mesh of two axes: how each argument and result is sharded.

All of the outer function runs on each device, with the values of its index along the outer axis.
The inner function takes its own shard there, and what the outer one returns of it is sharded over
both axes; what it uses further is gathered along the inner axis.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set

from pmapx._src.analysis.definitions import LOOPS, bound
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import constant
from pmapx._src.codemod.decide import specs
from pmapx._src.codemod.decide.map_calls import map_calls
from pmapx._src.codemod.decide.nested_pmaps import Grid, Nesting
from pmapx._src.codemod.decide.specs import Layout
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.text.name_counts import is_named_once
from pmapx._src.codemod.text.name_uses import name_uses


def grids(uses: Sequence[Use], nestings: Set[Nesting]) -> Iterator[tuple[Grid, Use, Use]]:
    """Yields the pairs of maps that are one map over a grid of devices, the outer one first."""
    for nesting in nestings:
        inner = [use for use in uses if nesting.inner in use.site.places]
        outer = [use for use in uses if nesting.outer in use.site.places]
        # A function that maps itself is not two maps.
        if len(inner) != 1 or len(outer) != 1 or inner == outer or outer[0].around.in_processes:
            continue
        if {*inner[0].nestings, *outer[0].nestings} == {nesting}:
            found = _grid(outer[0], inner[0])
            if found is not None:
                yield found, outer[0], inner[0]


def _grid(outer: Use, inner: Use) -> Grid | None:
    module, pair = outer.module, (outer, inner)
    layouts = [specs.layout(module, use.site) for use in pair]
    names = [
        specs.axis_value(module, use.site) or name
        for use, name in zip(pair, ("outer", "inner"), strict=True)
    ]
    if names[0] == names[1] or any(
        isinstance(layout, str) or layout.static or layout.devices or use.site.option("axis_size")
        for layout, use in zip(layouts, pair, strict=True)
    ):
        return None
    own, of = layouts
    assert isinstance(own, Layout)
    assert isinstance(of, Layout)
    quoted = Editor(module.source).quoted
    axes = quoted(names[0]), quoted(names[1])
    found = _composed if _is_direct(outer, inner) else _called
    return found(outer, inner, own, of, axes)


def _is_direct(outer: Use, inner: Use) -> bool:
    """Returns whether the inner map is what the outer one maps, where it is written."""
    parent = outer.module.parent(inner.expression)
    if isinstance(parent, ast.FunctionDef):
        return parent.decorator_list[-2:] == [outer.expression, inner.expression]
    call = outer.expression
    return isinstance(call, ast.Call) and call.args[:1] == [inner.expression]


def _composed(
    outer: Use, inner: Use, own: Layout, of: Layout, axes: tuple[str, str]
) -> Grid | None:
    given, results = (
        _together(each, other, axes)
        for each, other in ((own.in_axes, of.in_axes), (own.out_axes, of.out_axes))
    )
    both, every = ", ".join(axes), given if isinstance(given, tuple) else (given,)
    if given is ... or results is ... or both not in every:
        return None
    layout = Layout(axes[0], "", given, results)
    sized = every.index(both)
    if any(not call.args for _, call in map_calls(outer.module, outer.site)):
        return None
    return Grid(outer.site, inner.site, layout, axes, sized, _sizes(outer, [sized]))


def _together(outer: object, inner: object, axes: tuple[str, str]) -> object:
    """Returns the axes of what two maps shard one after the other, ``...`` if it has no spec."""
    if isinstance(outer, tuple) or isinstance(inner, tuple):
        count = max(len(each) if isinstance(each, tuple) else 0 for each in (outer, inner))
        pair = [each if isinstance(each, tuple) else (each,) * count for each in (outer, inner)]
        if len(pair[0]) != len(pair[1]):
            return ...
        parts = tuple(_together(one, other, axes) for one, other in zip(*pair, strict=True))
        return ... if any(part is ... or isinstance(part, tuple) for part in parts) else parts
    if not all(axis is None or axis == 0 for axis in (outer, inner)):
        return ...
    if inner is None:
        return outer
    return axes[1] if outer is None else ", ".join(axes)


def _called(outer: Use, inner: Use, own: Layout, of: Layout, axes: tuple[str, str]) -> Grid | None:
    """Returns the grid of a map that the outer function calls."""
    mapped, calls = outer.function, [call for _, call in map_calls(outer.module, inner.site)]
    if mapped is None or mapped.parameters is None or mapped.required != len(mapped.parameters):
        return None
    if own.out_axes != 0 or of.out_axes != 0 or not _is_only_called(inner, calls):
        return None
    if not all(_is_plain(outer, mapped.node, call) for call in calls):
        return None
    given = [(of.in_axes_of(i), arg) for call in calls for i, arg in enumerate(call.args)]
    taken = [arg for axis, arg in given if axis == 0]
    if not all(axis in (0, None) for axis, _ in given):
        return None
    in_axes, sized, sharded = [], [], set()
    for position, name in enumerate(mapped.parameters):
        named = list(_named(mapped.node, name))
        axis = own.in_axes_of(position)
        if axis not in (0, None):
            return None
        is_bound_once = all(isinstance(node.ctx, ast.Load) for node in named)
        if is_bound_once and axis == 0 and any(node in taken for node in named):
            sized.append(position)
        if is_bound_once and named and all(node in taken for node in named):
            sharded.update(named)
            axis = axes[1] if axis is None else ", ".join(axes)
        in_axes.append(axis)
    if not sized:
        return None
    first = min(sized, key=lambda i: not mapped.is_array(mapped.parameters[i]))  # type: ignore[index]
    returned = [each.value for each in mapped.returns]
    if isinstance(mapped.node, ast.Lambda):
        returned = [mapped.node.body]
    is_returned = set(map(id, returned)) == set(map(id, calls))
    layout = Layout(axes[0], "", tuple(in_axes), ", ".join(axes) if is_returned else 0)
    indexed = tuple(arg for arg in taken if arg not in sharded)
    return Grid(
        outer.site,
        inner.site,
        layout,
        axes,
        first,
        _sizes(outer, sized),
        True,
        indexed,
        () if is_returned else tuple(calls),
    )


def _named(node: ast.AST, name: str) -> Iterator[ast.Name]:
    """Yields where a function's own text uses a variable of its own."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.Name) and part.id == name:
            yield part
        is_function = isinstance(part, (ast.FunctionDef, ast.Lambda))
        if is_function and name in bound(ast.walk(part)):
            arguments = part.args  # type: ignore[attr-defined]
            defaults = [each for each in (*arguments.defaults, *arguments.kw_defaults) if each]
            yield from _named(ast.Tuple(defaults), name)
        else:
            yield from _named(part, name)


def _is_plain(outer: Use, function: ast.AST, call: ast.Call) -> bool:
    """Returns whether a call is in the outer function itself, not in one that it transforms."""
    around = outer.module.functions_around(call)
    is_unpacked = any(isinstance(arg, ast.Starred) for arg in call.args)
    return around[:1] == [function] and not is_unpacked and not call.keywords


def _is_only_called(inner: Use, calls: Sequence[ast.Call]) -> bool:
    """Returns whether nothing but these calls uses a map."""
    parent = inner.module.parent(inner.expression)
    if isinstance(parent, ast.Call) and parent.func is inner.expression:
        return list(calls) == [parent]
    if isinstance(parent, ast.FunctionDef):
        name = parent.name if parent.decorator_list == [inner.expression] else ""
    else:
        targets = parent.targets if isinstance(parent, ast.Assign) else []
        name = targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""
    is_called = all(isinstance(c.func, ast.Name) and c.func.id == name for c in calls)
    return (
        bool(name and calls)
        and is_called
        and is_named_once(inner.module, parent, name, 1 + len(calls))
    )


def _sizes(outer: Use, positions: Sequence[int]) -> str:
    """Returns the two sizes, if every call has an argument that is given them as its shape."""
    found = {
        _shape(outer, module, call, position)
        for module, call in map_calls(outer.module, outer.site)
        for position in positions
    }
    return found.pop() if len(found) == 1 else ""


def _shape(outer: Use, module: Module, call: ast.Call, position: int) -> str:
    """Returns the first two sizes of an argument from the statement above that assigns it."""
    name = call.args[position] if position < len(call.args) else None
    statement: ast.AST = call
    while not isinstance(statement, ast.stmt):
        statement = module.parent(statement)
        if isinstance(statement, (ast.Lambda, *LOOPS)):
            return ""
    body = getattr(module.parent(statement), "body", [])
    if module is not outer.module or not isinstance(name, ast.Name) or statement not in body:
        return ""
    above = [each for each in body[: body.index(statement)] if name.id in bound(ast.walk(each))]
    match above[-1:]:
        case [ast.Assign(value=ast.GeneratorExp(elt=value) | value)]:
            pass
        case _:
            return ""
    sizes: list[ast.expr] = []
    match value:
        case ast.Call(func=ast.Attribute(attr="reshape"), args=[first, second, *_]):
            sizes = [first, second]
        case ast.Call(
            func=ast.Attribute(attr="reshape" | "zeros" | "ones"),
            args=[ast.Tuple(elts=sizes) | ast.BinOp(left=ast.Tuple(elts=sizes), op=ast.Add()), *_],
        ):
            pass
    is_seen = len(sizes) > 1 and all(_is_constant(outer, each) for each in sizes[:2])
    return f"({', '.join(map(ast.unparse, sizes[:2]))})" if is_seen else ""


def _is_constant(outer: Use, node: ast.expr) -> bool:
    """Returns whether a size is a number, or a name that the file gives one above the map."""
    if not isinstance(node, ast.Name):
        return isinstance(node, ast.Constant) and type(node.value) is int and node.value > 0
    held, binding = outer.module.env.find(node.id), name_uses(outer.module).bound.get(node.id, [])
    is_number = held is not None and type(constant(held)) is int and len(binding) == 1
    return is_number and binding[0].lineno < outer.site.place.line  # type: ignore[attr-defined]
