"""Assigns values to targets."""

from __future__ import annotations

import ast
import dataclasses

from pmapx._src.analysis.definitions import Step
from pmapx._src.analysis.interpreter.frame import Frame, evaluate
from pmapx._src.analysis.interpreter.indexing import store_item
from pmapx._src.analysis.interpreter.lookup import dotted
from pmapx._src.analysis.values import (
    UNKNOWN,
    Confidence,
    Donated,
    Elements,
    Instance,
    Items,
    Stacked,
    Value,
    join,
    value,
)


def assign(
    frame: Frame,
    target: ast.expr,
    held: Value,
    source: ast.expr | None = None,
    steps: tuple[Step, ...] = (),
) -> None:
    """Binds a target, which may be a name, an attribute, an item or a tuple of targets."""
    for fact in held:
        if type(fact) is Donated:
            held = frozenset(fact for fact in held if type(fact) is not Donated)
            break
    if isinstance(target, ast.Name):
        frame.bind(target.id, held, target, source, steps)
    elif isinstance(target, ast.Starred):
        assign(frame, target.value, UNKNOWN, source, steps)
    elif isinstance(target, (ast.Tuple, ast.List)):
        count = len(target.elts)
        parts = unpacked(held, count)
        star = next((i for i, e in enumerate(target.elts) if isinstance(e, ast.Starred)), count)
        if star < count:
            parts = [UNKNOWN] * count
        for index, (part, known) in enumerate(zip(target.elts, parts, strict=True)):
            step: Step = (index, count) if star == count else (index, 1 - count)
            if index == star:
                step = (index, 1 - count, count - 1 - index)
            elif index > star:
                step = (index - count, 1 - count)
            assign(frame, part, known, source, (*steps, step))
    elif isinstance(target, ast.Attribute):
        owner = evaluate(frame, target.value, is_quiet=True)
        path = dotted(target)
        if path is not None:
            frame.env.forget_below(path)
            frame.env.set_path(path, held)
        is_own = path is not None and path == f"{frame.env.function_scope.self_name}.{target.attr}"
        frame.define(path if is_own and path is not None else "", target, source, steps)
        for fact in owner:
            if isinstance(fact, Instance):
                fact.cls.module.set_attribute(frame, fact.cls, target.attr, held)
    elif isinstance(target, ast.Subscript):
        index_held = evaluate(frame, target.slice)
        frame.define("", target, source, steps)
        store_item(frame, target.value, index_held, held)


def unpacked(held: Value, count: int) -> list[Value]:
    """Returns what each of ``count`` targets gets.

    >>> unpacked(value(Items((UNKNOWN, value(Elements(UNKNOWN))))), 2)
    [frozenset(), frozenset({Elements(element=frozenset())})]
    """
    parts = [UNKNOWN] * count
    for fact in held:
        if isinstance(fact, Items) and len(fact.items) == count:
            parts = [join(part, item) for part, item in zip(parts, fact.items, strict=True)]
        elif isinstance(fact, Stacked):
            # What is unpacked was a tuple, so its parts are the stacked values.
            stacked = dataclasses.replace(fact, doubt=Confidence.LOW)
            parts = [join(part, value(stacked)) for part in parts]
        elif isinstance(fact, Elements):
            parts = [join(part, fact.element) for part in parts]
    return parts
