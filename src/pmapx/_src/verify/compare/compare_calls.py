"""The calls of one function in both versions, compared in order."""

import dataclasses
from typing import Any

from pmapx._src.verify.compare.compare_arrays import (
    Grade,
    RecordedLeaf,
    Tolerance,
    comparable,
    compare,
    times,
)
from pmapx._src.verify.record.reader import Call, Function, Records

GIVEN = "got different values"


@dataclasses.dataclass(slots=True)
class Judgement:
    """The result of comparing the calls of a function."""

    grade: Grade = Grade.EQUAL
    detail: str = ""
    order: int = 0
    compared: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """A function in one version, with its records."""

    records: Records
    function: Function

    def call(self, number: int) -> Call:
        return self.records.call(self.function, number)

    def leaf(self, leaf: dict[str, Any]) -> RecordedLeaf:
        return RecordedLeaf(self.records, leaf)


def judge(before: Side, after: Side, tolerance: Tolerance) -> Judgement:
    """Compares call by call, up to the first that differs."""
    found = Judgement()
    calls = min(len(before.function.calls), len(after.function.calls))
    for number in range(calls):
        found.order = before.function.orders[number]
        found.compared += 1
        _judge_call(before, after, number, tolerance, found)
        if found.grade == Grade.DIFFERENT:
            return found
    was, now = before.function.count, after.function.count
    if was != now:
        found.grade = Grade.DIFFERENT
        found.detail = f"called {_times(was)} before and {_times(now)} after"
        # It differs from the first missing call on.
        found.order = [*before.function.orders, found.order + 1][calls]
    elif was > calls:
        found.note(f"the first {calls} of {was:,} calls were compared")
    return found


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _judge_call(
    before: Side, after: Side, number: int, tolerance: Tolerance, found: Judgement
) -> None:
    old, new = before.call(number), after.call(number)
    names = before.function.parameters or after.function.parameters
    if old.error or new.error:
        if old.error.partition(":")[0] != new.error.partition(":")[0]:
            raised = f"raised {new.error}" if new.error else f"no longer raises {old.error}"
            found.grade, found.detail = Grade.DIFFERENT, f"call {number} {raised}"
        return
    for which in ("inputs", "outputs"):
        leaves = getattr(old, which), getattr(new, which)
        pairs = _pairs(*leaves)
        if pairs is None:
            found.grade = Grade.DIFFERENT
            found.detail = f"call {number}: {_structure(which, *leaves)}"
            return
        for was, now in pairs:
            agreement = compare(before.leaf(was), after.leaf(now), tolerance)
            is_different = agreement.grade == Grade.DIFFERENT
            if agreement.form and not is_different:
                found.note(f"{_leaf(which, was, names)}: {agreement.form}")
            if agreement.grade <= found.grade:
                continue
            change = ""
            if which == "outputs" and is_different and agreement.factor is None:
                change = _change(before, after, old, new, was, now)
            found.grade = agreement.grade
            given = f" {GIVEN}" if which == "inputs" else ""
            text = "; ".join(filter(None, (agreement.detail, change)))
            found.detail = f"call {number}: {_leaf(which, was, names)}{given}: {text}"
            if is_different:
                return
    _judge_donation(_pairs(old.inputs, new.inputs) or [], number, names, found)


def _pairs(
    old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> list[tuple[dict[str, Any], dict[str, Any]]] | None:
    """Pairs leaves by their paths, or by order if all paths changed."""
    known = {(leaf.get("argument"), leaf["path"]): leaf for leaf in new}
    keys = [(leaf.get("argument"), leaf["path"]) for leaf in old]
    if set(keys) == set(known):
        return [(leaf, known[key]) for leaf, key in zip(old, keys, strict=True)]
    return list(zip(old, new, strict=True)) if len(old) == len(new) else None


def _structure(which: str, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> str:
    gone = [_key(leaf) for leaf in old if _key(leaf) not in map(_key, new)]
    added = [_key(leaf) for leaf in new if _key(leaf) not in map(_key, old)]
    text = f"{len(old)} {which} became {len(new)}"
    text += f", without {gone[0]}" if gone else ""
    return text + (f", with {added[0]}" if added else "")


def _key(leaf: dict[str, Any]) -> str:
    return f"{leaf.get('argument', '')}{leaf['path']}" or "the output"


def _leaf(which: str, leaf: dict[str, Any], names: tuple[str, ...]) -> str:
    """Names a leaf in the caller's terms."""
    path = leaf["path"]
    if which == "outputs":
        return f"output {path}" if path else "the output"
    return _argument(leaf["argument"], names) + (f" at {path}" if path else "")


def _argument(which: int | str, names: tuple[str, ...]) -> str:
    if isinstance(which, str):
        return f"keyword argument {which!r}"
    return f"argument {which}" + (f" {names[which]!r}" if which < len(names) else "")


def _judge_donation(
    pairs: list[tuple[dict[str, Any], dict[str, Any]]],
    number: int,
    names: tuple[str, ...],
    found: Judgement,
) -> None:
    for was, now in pairs:
        had, has = (leaf["is_donated"] or leaf["is_deleted"] for leaf in (was, now))
        if had == has:
            continue
        which = _argument(was["argument"], names)
        found.grade = Grade.DIFFERENT
        found.detail = (
            f"call {number}: {which} is no longer donated, so it needs twice the memory"
            if had
            else f"call {number}: {which} is donated now, so it cannot be used afterwards"
        )
        return


def _change(
    before: Side,
    after: Side,
    old: Call,
    new: Call,
    was: dict[str, Any],
    now: dict[str, Any],
) -> str:
    """Describes the factor between the updates of an input, such as a gradient step.

    A parameter updated with a gradient 8 times too large is itself not 8 times too large.
    """
    outputs = comparable(before.leaf(was), after.leaf(now))
    if outputs is None:
        return ""
    for start, restart in _pairs(old.inputs, new.inputs) or ():
        if "shape" not in start or "shape" not in restart:
            continue
        if (start["shape"], start["dtype"]) != (was["shape"], was["dtype"]):
            continue
        inputs = comparable(before.leaf(start), after.leaf(restart))
        if inputs is None or inputs[0].shape != outputs[0].shape:
            continue
        factor = times(outputs[0] - inputs[0], outputs[1] - inputs[1], within=0.02)
        if factor is not None:
            return f"its change in the call is about {factor:.3g} times as large"
    return ""
