"""Calls of a pmap by keyword or with what they unpack: what is replicated goes by position."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pmapx._src.analysis import definitions
from pmapx._src.analysis.definitions import LOOPS
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import positional
from pmapx._src.codemod.replicated.mapped_functions import functions
from pmapx._src.source.rewriting.edits import Edit, between, replacing, starts

if TYPE_CHECKING:
    from pmapx._src.codemod.replicated.maps import Map


def keywords_in_order(
    module: Module, maps: Sequence[Map], call: ast.Call
) -> list[ast.keyword] | None:
    """Returns a call's keywords in the order of the parameters that they are for.

    None if they could not be written by position: one is not a parameter of every function that may
    be called, an argument before it is missing, or pmap does more with that position than map it.
    """
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    orders = [_order(module, each, call) for each in maps]
    first = orders[0]
    if first is None or any(order != first for order in orders[1:]):
        return None
    ordered = [call.keywords[index] for index in first]
    is_moved = ordered != call.keywords
    if is_moved and not all(isinstance(k.value, (ast.Name, ast.Constant)) for k in ordered):
        return None
    return ordered


def _order(module: Module, each: Map, call: ast.Call) -> list[int] | None:
    names = _parameters(each)
    if names is None or each.is_method:
        return None
    given = {keyword.arg: index for index, keyword in enumerate(call.keywords)}
    start = len(call.args)
    wanted = names[start : start + len(given)]
    positions = range(start, start + len(wanted))
    if set(wanted) != set(given) or len(wanted) != len(given):
        return None
    # By keyword, an argument is mapped over axis 0 and never donated.
    if any(p in each.static or each.in_axis(p) != 0 for p in positions):
        return None
    if not all(
        _is_last_use(module, call, call.keywords[given[name]].value) or _is_never_donated(each, p)
        for name, p in zip(wanted, positions, strict=True)
        if p in each.donated
    ):
        return None
    return [given[name] for name in wanted]


def _is_never_donated(each: Map, position: int) -> bool:
    """Tells whether all calls give an argument by keyword, which pmap does not donate."""
    return not any(
        len(call.args) > position or any(isinstance(arg, ast.Starred) for arg in call.args)
        for _, call in each.calls.values()
    )


def donated_after(each: Map) -> set[int]:
    """Returns what it donates once all calls are by position: all but what is used after one."""
    used = {
        len(call.args) + index
        for call, (module, ordered) in each.by_keyword.items()
        for index, keyword in enumerate(ordered)
        if not _is_last_use(module, call, keyword.value)
    }
    return {*each.donated} - used


def _is_last_use(module: Module, call: ast.Call, value: ast.expr) -> bool:
    """Tells whether a call may reuse the memory of a variable: bound anew, or used no more."""
    if not isinstance(value, ast.Name):
        return False
    around: list[ast.AST] = [call]
    while not isinstance(around[-1], (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
        around.append(module.parent(around[-1]))
    statement = module.statement(call)
    bound = [
        part
        for part in ast.walk(around[-1])
        if isinstance(part, ast.Assign)
        and value.id in {name for t in part.targets for name in definitions.bound(ast.walk(t))}
    ]
    is_kept = any(
        isinstance(part, ast.Assign) and isinstance(part.value, ast.Name)
        and part.value.id == value.id
        for part in ast.walk(around[-1])
    )  # fmt: skip
    if is_kept or statement in bound:
        return not is_kept
    is_read_below = any(
        isinstance(part, ast.Name) and part.id == value.id and isinstance(part.ctx, ast.Load)
        for part in ast.walk(around[-1])
        if getattr(part, "lineno", 0) > (statement.end_lineno or 0)
    )
    # In a loop, each round gives it another value first.
    loop = next((index for index, each in enumerate(around) if isinstance(each, LOOPS)), None)
    inside = around[: None if loop is None else loop + 1]
    is_new = loop is None or any(
        part.lineno < statement.lineno and module.parent(part) in inside for part in bound
    )
    return is_new and not is_read_below


def _parameters(each: Map) -> list[str] | None:
    """Returns the names that every function which may be mapped has for its arguments."""
    found = {
        tuple(positional(function.node.args)[taken:])
        for function, taken in functions(each.function)
    }
    return list(found.pop()) if len(found) == 1 else None


def unpacked_count(maps: Sequence[Map], call: ast.Call) -> int | None:
    """Returns how many arguments a call unpacks, by the parameters of what is mapped."""
    starred = [arg for arg in call.args if isinstance(arg, ast.Starred)]
    taken = [function.node.args for each in maps for function, _ in functions(each.function)]
    is_any = any(each.vararg or each.kwonlyargs or each.kwarg or each.defaults for each in taken)
    names = {tuple(_parameters(each) or ()) for each in maps}
    if len(starred) != 1 or is_any or len(names) != 1:
        return None
    count = len(names.pop()) - (len(call.args) - 1) - len(call.keywords)
    return count if count > 0 and not any(k.arg is None for k in call.keywords) else None


def edits(module: Module, call: ast.Call, ordered: Sequence[ast.keyword]) -> list[Edit]:
    found = []
    for written, keyword in zip(call.keywords, ordered, strict=True):
        place, value = module.place(written), module.place(keyword.value)
        if written is keyword:
            line = module.source.line(place.line)
            equals = line.index("=", place.column) + 1
            equals += len(line[equals:]) - len(line[equals:].lstrip())
            found.append(between(starts(place), (place.line, equals)))
        else:
            found.append(replacing(place, module.source.segment(value)))
    return found
