"""Operators and functions of JAX that combine a result of pmap with an array on one device."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from pmapx._src.analysis import known_names
from pmapx._src.analysis.interpreter.frame import Arguments, Frame, evaluate
from pmapx._src.analysis.values import (
    UNKNOWN,
    Confidence,
    OnDevice,
    Result,
    Stacked,
    Value,
    of_kind,
    value,
)

Met = tuple[Stacked, OnDevice]
ONE_DEVICE = frozenset(f"{name}[]" for name in known_names.DEVICES)


def device_put(frame: Frame, name: str, arguments: Arguments, node: ast.expr) -> Value:
    """Returns what ``jax.device_put`` gives: with a device of ``jax.devices()``, an array there."""
    device = arguments.get(1, "device")
    if device and all(isinstance(fact, Result) and fact.of in ONE_DEVICE for fact in device):
        return value(Result(name), OnDevice(frame.module.place(node)))
    return value(Result(name))


def compare(frame: Frame, node: ast.Compare) -> Value:
    """Returns what is known of a comparison: nothing, but which operands met in it."""
    operands = [evaluate(frame, part) for part in (node.left, *node.comparators)]
    for left, right, operator in zip(operands[:-1], operands[1:], node.ops, strict=True):
        if not isinstance(operator, (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
            note(frame, node, left, right)
    return UNKNOWN


def note(frame: Frame, node: ast.AST, *operands: Value) -> None:
    """Records operands of which one is a result of pmap for certain, and one on a single device."""
    met = meeting(operands) if all(operands) else None
    if met is not None:
        frame.module.facts.meetings[node] = met


def meeting(operands: Iterable[Value]) -> Met | None:
    """Returns the result of pmap and the array on one device among operands, if both are there."""
    operands = list(operands)
    stacked = [fact for held in operands if _is_stacked(held) for fact in of_kind(held, Stacked)]
    single = [fact for held in operands if _is_on_device(held) for fact in of_kind(held, OnDevice)]
    if not stacked or not single:
        return None
    return min(stacked, key=_order), min(single, key=_order)


def _order(fact: Stacked | OnDevice) -> tuple[str, int, int]:
    return fact.place.path, fact.place.line, fact.place.column


def _is_stacked(held: Value) -> bool:
    return bool(held) and all(
        isinstance(fact, Stacked) and fact.from_map and fact.confidence is Confidence.HIGH
        for fact in held
    )


def _is_on_device(held: Value) -> bool:
    return any(isinstance(fact, OnDevice) for fact in held) and all(
        isinstance(fact, (OnDevice, Result)) for fact in held
    )
