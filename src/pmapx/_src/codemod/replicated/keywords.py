"""Calls of a pmap by keyword or with what they unpack: what is replicated goes by position."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pmapx._src.analysis.module import Module
from pmapx._src.codemod.replicated.mapped_functions import functions
from pmapx._src.source.rewriting.edits import Edit, between, replacing, starts

if TYPE_CHECKING:
    from pmapx._src.codemod.replicated.maps import Map


def keywords_in_order(maps: Sequence[Map], call: ast.Call) -> list[ast.keyword] | None:
    """Returns a call's keywords in the order of the parameters that they are for.

    None if they could not be written by position: one is not a parameter of every function that may
    be called, an argument before it is missing, or pmap does more with that position than map it.
    """
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    orders = [_order(each, call) for each in maps]
    first = orders[0]
    if first is None or any(order != first for order in orders[1:]):
        return None
    ordered = [call.keywords[index] for index in first]
    is_moved = ordered != call.keywords
    if is_moved and not all(isinstance(k.value, (ast.Name, ast.Constant)) for k in ordered):
        return None
    return ordered


def _order(each: Map, call: ast.Call) -> list[int] | None:
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
    if any(p in each.donated or p in each.static or each.in_axis(p) != 0 for p in positions):
        return None
    return [given[name] for name in wanted]


def _parameters(each: Map) -> list[str] | None:
    """Returns the names that every function which may be mapped has for its arguments."""
    found = {
        tuple(arg.arg for arg in (*function.node.args.posonlyargs, *function.node.args.args))[
            taken:
        ]
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
        whole, value = module.place(written), module.place(keyword.value)
        if written is keyword:
            line = module.source.line(whole.line)
            equals = line.index("=", whole.column) + 1
            equals += len(line[equals:]) - len(line[equals:].lstrip())
            found.append(between(starts(whole), (whole.line, equals)))
        else:
            found.append(replacing(whole, module.source.segment(value)))
    return found
