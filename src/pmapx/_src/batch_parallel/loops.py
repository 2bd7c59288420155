"""Rules of control flow: branches, loops, and loops over the batch itself.

A `scan` over the batch applies its body to each example, and one over microbatches to parts that
hold other examples when the batch is global. Both have a global version if they only add up what
they compute from each example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jax.extend.core import JaxprEqn

from pmapx._src.batch_parallel.kinds import (
    SAME,
    SUM,
    Kind,
    Reason,
    Relation,
    UnprovenError,
    Value,
    common_kind,
    join,
    shard,
    unknown,
)
from pmapx._src.batch_parallel.steps import description
from pmapx._src.replication import jaxprs, source_locations

if TYPE_CHECKING:
    from pmapx._src.batch_parallel.interpreter import Interpreter, Path

Eqns = tuple[JaxprEqn, JaxprEqn, JaxprEqn]
Run = Callable[[Sequence[Value]], list[Value]]
LoopRule = Callable[["Interpreter", Eqns, list[Value], "Path"], list[Value]]

EXAMPLES = "a loop over the examples of a device"
MICROBATCHES = "a loop over microbatches"


def cond(walk: Interpreter, eqns: Eqns, values: list[Value], at: Path) -> list[Value]:
    which, *arguments = values
    _require_replicated(which, "chooses a branch by")
    branches = [eqn.params["branches"] for eqn in eqns]
    if len({len(each) for each in branches}) != 1:
        raise UnprovenError("has different branches for the global batch")
    found = [
        walk.jaxpr(programs, arguments, (*at, f"branch {k}"))
        for k, programs in enumerate(zip(*branches, strict=True))
    ]
    return [_joined(eqns[0], several) for several in zip(*found, strict=True)]


def while_loop(walk: Interpreter, eqns: Eqns, values: list[Value], at: Path) -> list[Value]:
    counts = {(e.params["cond_nconsts"], e.params["body_nconsts"]) for e in eqns}
    if len(counts) != 1:
        raise UnprovenError("has a different body for the global batch")
    [(of_cond, of_body)] = counts
    cond_consts, body_consts = values[:of_cond], values[of_cond : of_cond + of_body]
    bodies = [eqn.params["body_jaxpr"] for eqn in eqns]
    conds = [eqn.params["cond_jaxpr"] for eqn in eqns]

    def step(carry: Sequence[Value]) -> list[Value]:
        return walk.jaxpr(bodies, [*body_consts, *carry], (*at, "body"))

    carry, _ = _fixpoint(eqns[0], step, values[of_cond + of_body :])
    [goes_on] = walk.jaxpr(conds, [*cond_consts, *carry], (*at, "cond"))
    _require_replicated(goes_on, "has a number of iterations that depends on")
    return carry


def scan(walk: Interpreter, eqns: Eqns, values: list[Value], at: Path) -> list[Value]:
    counts = {jaxprs.scan_counts(eqn) for eqn in eqns}
    if len(counts) != 1 or None in counts or len({e.params["reverse"] for e in eqns}) != 1:
        raise UnprovenError("has a different body for the global batch")
    [(num_consts, num_carry)] = [each for each in counts if each is not None]
    consts = values[:num_consts]
    start, xs = values[num_consts : num_consts + num_carry], values[num_consts + num_carry :]
    length, _, global_length = (eqn.params["length"] for eqn in eqns)
    bodies = [eqn.params["jaxpr"] for eqn in eqns]

    def run(inputs: Sequence[Value]) -> list[Value]:
        return walk.jaxpr(bodies, inputs, (*at, "body"))

    if length != global_length:
        if global_length != walk.n * length or not xs:
            raise UnprovenError("has a number of iterations that depends on the batch size")
        with walk.loop_over_batch(EXAMPLES):
            return _over_examples(eqns[0], run, consts, start, xs)
    if any(x.kind.relation is Relation.SPLIT for x in xs):
        with walk.loop_over_batch(MICROBATCHES):
            return _over_microbatches(eqns[0], run, consts, start, xs)
    items = [_item(eqns[0], x) for x in xs]
    carry, results = _fixpoint(eqns[0], lambda c: run([*consts, *c, *items]), start)
    return [*carry, *(_stacked(eqns[0], y) for y in results[num_carry:])]


def _over_examples(
    eqn: JaxprEqn, run: Run, consts: Sequence[Value], start: Sequence[Value], xs: Sequence[Value]
) -> list[Value]:
    """Each iteration takes the same example, or the same group of them, in both traces."""
    segments = {x.kind.segments for x in xs} - {0}
    are_sharded = all(x.kind.relation is Relation.SHARD and x.kind.axis == 0 for x in xs)
    if not are_sharded or len(segments) > 1:
        raise UnprovenError("scans arrays that are sharded differently")
    items = [dataclasses.replace(x, kind=SAME.scaled(x.kind.scale), pair=None) for x in xs]

    def stacked(y: Value) -> Value:
        if y.kind.relation is not Relation.SAME:
            return _not_known(eqn, y, "returns what it accumulates over the batch")
        kind = shard(0, y.kind.scale, max(segments, default=0))
        return Value(kind, is_zero=y.is_zero, depends_on_batch=True)

    # Each iteration adds the contribution of one example, not a part of a sum over all devices.
    return _over_batch(eqn, run, consts, start, items, -1, stacked)


def _over_microbatches(
    eqn: JaxprEqn, run: Run, consts: Sequence[Value], start: Sequence[Value], xs: Sequence[Value]
) -> list[Value]:
    """Microbatches hold other examples when the batch is global: only sums over all are equal."""
    if not all(x.kind.relation is Relation.SPLIT and x.kind.segments for x in xs):
        raise UnprovenError("scans microbatches together with values that are split differently")
    items = [dataclasses.replace(x, kind=shard(0, x.kind.scale), pair=None) for x in xs]

    def stacked(y: Value) -> Value:
        is_batch = y.kind.relation is Relation.SHARD and y.kind.axis == 0 and y.kind.segments <= 1
        if not is_batch and y.kind.relation not in (Relation.SUM, Relation.SAME):
            return _not_known(eqn, y, "returns a value that differs between microbatches")
        scale = y.kind.scale + (y.kind.relation is Relation.SAME)
        return Value(Kind(Relation.SPLIT, scale, 0, int(is_batch)), depends_on_batch=True)

    return _over_batch(eqn, run, consts, start, items, 0, stacked)


def _over_batch(
    eqn: JaxprEqn,
    run: Run,
    consts: Sequence[Value],
    start: Sequence[Value],
    items: Sequence[Value],
    power: int,
    stacked: Callable[[Value], Value],
) -> list[Value]:
    totals = [Value(Kind(Relation.TOTAL, 0, k, 0)) for k in range(len(start))]
    found = run([*(_replicated(eqn, each) for each in consts), *totals, *items])
    carry = [_total(eqn, *each, k, power) for k, each in enumerate(zip(start, found, strict=False))]
    return [*carry, *map(stacked, found[len(start) :])]


def _total(eqn: JaxprEqn, start: Value, end: Value, index: int, power: int) -> Value:
    """Returns what is known of a carry to which a loop over the batch added something."""
    kind = end.kind
    if kind.relation is not Relation.TOTAL or kind.axis != index:
        return _not_known(eqn, end, "carries a value from some examples to the next")
    if not kind.segments:
        return dataclasses.replace(start, pair=None)
    found = common_kind([start, Value(SUM.scaled(kind.scale + power))])
    if found is None:
        return _not_known(eqn, start, f"adds a sum over the examples to {description(start)}")
    return Value(found, depends_on_batch=True)


def _fixpoint(
    eqn: JaxprEqn, step: Callable[[Sequence[Value]], list[Value]], start: Sequence[Value]
) -> tuple[list[Value], list[Value]]:
    """Returns kinds of a carry that an iteration does not change, and what it then returns."""
    values = [
        dataclasses.replace(value, pair=None, device_stride=None, columns=()) for value in start
    ]
    while True:
        results = step(values)
        wider = [_joined(eqn, pair) for pair in zip(values, results, strict=False)]
        if wider == values:
            return values, results
        values = wider


def _joined(eqn: JaxprEqn, several: Sequence[Value]) -> Value:
    found = dataclasses.replace(several[0], pair=None, device_stride=None, columns=())
    for value in several[1:]:
        bad = next((each for each in (found, value) if each.is_unknown), None)
        if bad is not None:
            return Value(bad.kind)
        joined = join(found, value)
        if joined is None:
            what = f"{description(found)} or {description(value)}"
            return _not_known(eqn, found, f"returns {what}")
        found = dataclasses.replace(joined, pair=None)
    return found


def _item(eqn: JaxprEqn, x: Value) -> Value:
    """Returns what is known of x[i], if it is scanned in as many iterations for any batch."""
    if x.kind.relation is Relation.SHARD and x.kind.axis > 0:
        return dataclasses.replace(x, kind=x.kind.along(x.kind.axis - 1), pair=None, columns=())
    if x.kind.is_pointwise or x.is_unknown:
        return dataclasses.replace(x, pair=None, device_stride=None, columns=())
    return _not_known(eqn, x, "iterates over the batch")


def _stacked(eqn: JaxprEqn, y: Value) -> Value:
    if y.kind.relation is Relation.SHARD:
        return dataclasses.replace(y, kind=y.kind.along(y.kind.axis + 1), pair=None)
    if y.kind.is_pointwise or y.is_unknown:
        return dataclasses.replace(y, pair=None, device_stride=None, columns=())
    return _not_known(eqn, y, f"stacks {description(y)}")


def _replicated(eqn: JaxprEqn, value: Value) -> Value:
    if value.kind.relation is Relation.SAME:
        return value
    return _not_known(
        eqn, value, f"iterates over the batch, with {description(value)} in each step"
    )


def _not_known(eqn: JaxprEqn, value: Value, why: str) -> Value:
    if value.is_unknown:
        return Value(value.kind)
    name, line = f"`{eqn.primitive.name}`", source_locations.line_of(eqn)
    return Value(unknown(Reason(name, line, why)))


def _require_replicated(value: Value, verb: str) -> None:
    if value.is_unknown and value.kind.reason is not None:
        raise UnprovenError(f"{verb} values of the device: {value.kind.reason}")
    if value.kind != SAME:
        raise UnprovenError(f"{verb} {description(value)}")


RULES: dict[str, LoopRule] = {"cond": cond, "while": while_loop, "scan": scan}
