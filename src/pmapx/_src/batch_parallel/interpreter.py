"""Follows the kinds of values through the traces of a body."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var

from pmapx._src.batch_parallel import (
    arithmetic,
    collectives,
    indexing,
    loops,
    reductions,
    shapes,
    steps,
    traces,
)
from pmapx._src.batch_parallel.kinds import (
    SAME,
    Kind,
    Reason,
    Relation,
    UnprovenError,
    Value,
    of_pair,
    unknown,
)
from pmapx._src.batch_parallel.steps import Rule, Step, shape_of
from pmapx._src.replication import jaxprs, shard_map_body, source_locations

Path = tuple[int | str, ...]
"""Where an equation is: its index, after those of the equations that it is inside of."""
Programs = Sequence[Any]
"""A jaxpr of the body on n devices, on one device, and on one with the global batch."""

RULES: dict[str, Rule] = {
    **arithmetic.RULES,
    **shapes.RULES,
    **reductions.RULES,
    **indexing.RULES,
    **collectives.RULES,
}
_ZERO_STAYS = set[str]().union(
    *(module.ZERO_STAYS for module in (arithmetic, shapes, reductions, indexing))
)
# What else an equation takes does not make its result other than zero.
_ZERO_OPERANDS = {"select_n": slice(1, None), "dynamic_slice": slice(1)}
_TRUSTED = {*RULES, *shard_map_body.RULES}
_FOLDED_AT_MOST = 2**16
_CONSTANT = "a constant"
_NOT_GIVEN = Value(unknown(Reason(_CONSTANT, None, "is not part of the trace")))
NOT_UNDERSTOOD = "has parameters that are not understood"
_NO_GLOBAL_RULE = "is not known to treat each example independently"


@dataclasses.dataclass(frozen=True)
class Record:
    """A collective on the way."""

    eqn: JaxprEqn
    values: tuple[Value, ...] = ()  # What is known of its operands.
    powers: tuple[int, ...] = ()  # Of n, by which each is multiplied over the global batch.
    reason: Reason | None = None  # Why it has no meaning over the global batch, if so.
    is_derivative: bool = False  # Whether it is the transpose of one that the user wrote.

    @functools.cached_property
    def place(self) -> source_locations.Location:
        return source_locations.location_of(self.eqn)


class Interpreter:
    """One walk, for ``n`` devices along the mapped axis."""

    def __init__(self, n: int, axis_name: Hashable) -> None:
        self.n, self.axis_name = n, axis_name
        self.records: dict[Path, Record] = {}  # The collectives.
        # By path and operand, the constants that replace those of one device: n for 1.
        self.constants: dict[tuple[Path, int], Any] = {}
        self.size_uses: dict[Path, JaxprEqn] = {}  # What uses the number of devices.
        self._loop_over_batch: str | None = None
        self._callers: list[JaxprEqn] = []

    @contextlib.contextmanager
    def loop_over_batch(self, what: str) -> Iterator[None]:
        """Until the end of the block, a loop over examples or over microbatches is followed."""
        before, self._loop_over_batch = self._loop_over_batch, what
        try:
            yield
        finally:
            self._loop_over_batch = before

    def jaxpr(self, programs: Programs, inputs: Sequence[Value], path: Path) -> list[Value]:
        opened = [jaxprs.opened(program) for program in programs]
        local, alone, global_ = opened
        _require_same_length([each.invars for each in opened], "takes")
        _require_same_length([each.outvars for each in opened], "returns")
        env: dict[Var, Value] = dict(zip(local.invars, inputs, strict=True))
        twins = dict(zip(local.invars, zip(alone.invars, global_.invars, strict=True), strict=True))
        self._constants(programs, opened, env, twins)

        def read(atoms: tuple[Any, Any, Any], operand: int, at: Path) -> Value:
            if not isinstance(atoms[0], Literal):
                if twins.get(atoms[0]) != atoms[1:]:
                    raise UnprovenError("takes different values in the trace for the global batch")
                return env[atoms[0]]
            if not all(isinstance(atom, Literal) for atom in atoms):
                raise UnprovenError("takes different values in the trace for the global batch")
            values = [np.asarray(a.val, dtype=steps.dtype_of(a)) for a in atoms]
            return self._constant(values, (at, operand))

        every = zip(local.eqns, alone.eqns, global_.eqns, strict=False)
        for index, (eqn, one, twin) in enumerate(every):
            at = (*path, index)
            try:
                if not eqn.primitive.name == one.primitive.name == twin.primitive.name:
                    raise UnprovenError(f"is `{twin.primitive.name}` for the global batch")
                _require_same_length([e.invars for e in (eqn, one, twin)], "takes")
                atoms = zip(eqn.invars, one.invars, twin.invars, strict=True)
                values = [read(each, k, at) for k, each in enumerate(atoms)]
                if any((at, k) in self.constants for k in range(len(values))):
                    self.size_uses[at] = eqn
                results = self.equation((eqn, one, twin), values, at)
            except UnprovenError as error:
                results = [Value(unknown(self.reason(eqn, str(error))))] * len(eqn.outvars)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                # Parameters that another release of JAX gives the primitive.
                why = f"{NOT_UNDERSTOOD} ({type(error).__name__}: {error})"
                results = [Value(unknown(self.reason(eqn, why)))] * len(eqn.outvars)
            env.update(zip(eqn.outvars, results, strict=True))
            for var, *others in zip(eqn.outvars, one.outvars, twin.outvars, strict=False):
                twins[var] = (others[0], others[1])
        at = (*path, "out")
        atoms = zip(local.outvars, alone.outvars, global_.outvars, strict=True)
        return [self._output(read, each, k, at) for k, each in enumerate(atoms)]

    def _output(self, read: Any, atoms: Any, index: int, at: Path) -> Value:
        try:
            return read(atoms, index, at)
        except (UnprovenError, KeyError):
            why = "is different in the trace for the global batch"
            return Value(unknown(Reason("a result", None, why)))

    def _constants(self, programs: Programs, opened: Any, env: Any, twins: Any) -> None:
        _require_same_length([each.constvars for each in opened], "holds")
        names = zip(*(each.constvars for each in opened), strict=True)
        several = [traces.constants(program) for program in programs]
        values = list(zip(*several, strict=True))
        for k, (var, *others) in enumerate(names):
            known = len(several[0]) == len(opened[0].constvars)
            env[var] = self._constant(list(values[k]), None) if known else _NOT_GIVEN
            if jax.numpy.issubdtype(steps.dtype_of(var), jax.dtypes.prng_key):
                env[var] = dataclasses.replace(env[var], pair=None)
            twins[var] = tuple(others)

    def _constant(self, values: list[Any], place: tuple[Path, int] | None) -> Value:
        """Returns what is known of a constant; one that comes from n is n for the global batch."""
        local, alone, global_ = values
        why = Reason(_CONSTANT, None, "depends on the per-device batch size")
        if local is not alone and not _equal(local, alone) and not _equal(local, global_):
            why = Reason(_CONSTANT, None, "depends on the number of devices")
            if place is None or not _equal(alone, global_):
                return Value(unknown(why))
            self.constants[place] = global_ = local
        found = of_pair((local, global_), self.n, why)
        return found if local.size <= _FOLDED_AT_MOST else dataclasses.replace(found, pair=None)

    def equation(
        self, eqns: tuple[JaxprEqn, JaxprEqn, JaxprEqn], values: list[Value], at: Path
    ) -> list[Value]:
        eqn, _, twin = eqns
        if not jaxprs.is_jaxs_own(eqn.primitive, _TRUSTED):
            raise UnprovenError("is a primitive that JAX does not define")
        name = eqn.primitive.name
        callees = [shard_map_body.callee(each) for each in eqns]
        self._callers.append(eqn)
        try:
            if all(each is not None for each in callees):
                return self.jaxpr(callees, values, at)
            if name in loops.RULES:
                return loops.RULES[name](self, eqns, values, at)
        finally:
            self._callers.pop()
        step = Step(eqn, twin, values, self.n, self.axis_name)
        if name == "axis_index":
            self.records[at] = Record(eqn)
        if name in collectives.RULES and eqn.invars:
            return self._collective(step, at)
        if name in ("optimization_barrier", "device_put", "pvary", "pcast"):
            return list(values)
        folded = self._folded(step)
        if folded is not None:
            return folded
        bad = next((value for value in values if value.is_unknown), None)
        if bad is not None:
            found = None
            if any(value.device_stride is not None for value in values):
                found = arithmetic.position_in_batch(step)
            elif name == "concatenate":
                found = shapes.columns(step)
            elif any(value.columns for value in values) and name in indexing.RULES:
                others = [v for v in values if v.is_unknown and not v.columns]
                found = None if others else RULES[name](step)
            if found is None:
                reason = bad.kind.reason
                if reason is not None and reason.operation == _CONSTANT:
                    raise UnprovenError(f"takes a constant that {reason.why}")
                return [Value(bad.kind)] * len(eqn.outvars)
            return self._finished(step, found)
        return self._finished(step, self._applied(step))

    def reason(self, eqn: JaxprEqn, why: str) -> Reason:
        """Returns a reason with the user's line, of a call where a library's function has none."""
        lines = (source_locations.line_of(each) for each in (eqn, *reversed(self._callers)))
        return Reason(f"`{eqn.primitive.name}`", next(filter(None, lines), None), why)

    def _applied(self, step: Step) -> Any:
        if all(kind == SAME for kind in step.kinds) and step.name not in collectives.RULES:
            is_plain = not shard_map_body.reaches_beyond(step.eqn) and not steps.has_collectives(
                step.eqn, self.axis_name
            )
            has_same_shapes = all(
                shape_of(a) == shape_of(b)
                for a, b in zip(step.eqn.outvars, step.twin.outvars, strict=True)
            )
            if is_plain and has_same_shapes:
                step.require_same_params("sharding", "out_sharding")
                return SAME
        if step.name not in RULES:
            raise UnprovenError(_NO_GLOBAL_RULE)
        return RULES[step.name](step)

    def _collective(self, step: Step, at: Path) -> list[Value]:
        """Applies a rule operand by operand."""
        if len(step.values) != len(step.eqn.outvars):
            raise UnprovenError(_NO_GLOBAL_RULE)
        forced = self._power_of_derivative(step)
        results, powers = [], []
        for k, value in enumerate(step.values):
            one = dataclasses.replace(step, values=[value])
            kind = value.kind
            try:
                if self._loop_over_batch is not None:
                    raise UnprovenError(f"is inside of {self._loop_over_batch}")
                if not value.is_unknown:
                    [kind] = _listed(RULES[step.name](one), 1)
                    if forced is not None:
                        kind = kind.scaled(one.power - forced)
                    powers.append(one.power if forced is None else forced)
                found = Value(kind, depends_on_batch=value.depends_on_batch)
                results.append(self._checked(step, found, k))
            except UnprovenError as error:
                results.append(Value(unknown(self.reason(step.eqn, str(error)))))
        reason = next((each.kind.reason for each in results if each.is_unknown), None)
        is_derivative = self._is_derivative(step.eqn)
        self.records[at] = Record(
            step.eqn, tuple(step.values), tuple(powers), reason, is_derivative
        )
        return results

    def _is_derivative(self, eqn: JaxprEqn) -> bool:
        """Whether an equation is the transpose of one that the user wrote."""
        names = (str(each.source_info.name_stack) for each in (eqn, *self._callers))
        return any("transpose(" in name for name in names)

    def _power_of_derivative(self, step: Step) -> int | None:
        """Returns the power of n of the psum that this one is the derivative of.

        Code that has a multiple of the operand in its place has the same multiple as derivative.
        """
        if not step.name.startswith("psum") or not self._is_derivative(step.eqn):
            return None
        place = source_locations.location_of(step.eqn)
        found = {
            power
            for record in self.records.values()
            if not record.is_derivative and record.place == place
            for power in record.powers
        }
        return found.pop() if len(found) == 1 else None

    def _finished(self, step: Step, result: Any) -> list[Value]:
        zeros = step.values[_ZERO_OPERANDS.get(step.name, slice(None))]
        is_zero = step.name in _ZERO_STAYS and bool(zeros) and all(v.is_zero for v in zeros)
        depends = any(value.depends_on_batch for value in step.values)
        values = []
        for k, each in enumerate(_listed(result, len(step.eqn.outvars))):
            value = Value(each) if isinstance(each, Kind) else each
            zero = is_zero or value.is_zero
            value = dataclasses.replace(value, depends_on_batch=depends, is_zero=zero)
            values.append(self._checked(step, value, k))
        return values

    def _checked(self, step: Step, value: Value, result: int) -> Value:
        """Returns a value whose shapes are those that its kind means; else it is unknown."""
        local, global_ = step.out_shapes(result)
        kind, fits = value.kind, True
        if kind.is_pointwise or kind.relation is Relation.TOTAL:
            fits = local == global_
        elif kind.relation is Relation.SHARD:
            grown = [s * self.n if k == kind.axis else s for k, s in enumerate(local)]
            fits = kind.axis < len(local) and tuple(grown) == global_
            fits = fits and local[kind.axis] % max(kind.segments, 1) == 0
        if not fits:
            raise UnprovenError(steps.OTHER_SHAPE)
        is_item = self._loop_over_batch == loops.EXAMPLES
        if is_item and kind.relation not in (Relation.SAME, Relation.TOTAL, Relation.UNKNOWN):
            raise UnprovenError("uses all examples of a device in a loop over them")
        return value

    def _folded(self, step: Step) -> list[Value] | None:
        """Evaluates what is computed from constants that differ between the traces."""
        size = max((math.prod(s) for k in range(len(step.eqn.outvars))
                    for s in step.out_shapes(k)), default=0)  # fmt: skip
        is_pure = not shard_map_body.reaches_beyond(step.eqn) and step.name not in collectives.RULES
        if not is_pure or size > _FOLDED_AT_MOST or step.name.startswith(("random", "threefry")):
            return None
        if any(value.pair is None for value in step.values):
            return None
        differs = any(value.kind != SAME for value in step.values) or (
            step.out_shapes()[0] != step.out_shapes()[1] and step.name == "iota"
        )
        if not differs and size > 1:
            return None
        pairs = [value.pair for value in step.values if value.pair is not None]
        try:
            with jax.ensure_compile_time_eval():
                results = [
                    _evaluated(eqn, [pair[k] for pair in pairs])
                    for k, eqn in enumerate((step.eqn, step.twin))
                ]
        except Exception:  # What cannot be evaluated here is followed by its rule.
            return None
        depends = any(value.depends_on_batch for value in step.values)
        why = self.reason(step.eqn, "depends on the per-device batch size")
        found = [of_pair(pair, self.n, why) for pair in zip(*results, strict=True)]
        return [dataclasses.replace(value, depends_on_batch=depends) for value in found]


def _evaluated(eqn: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    results = eqn.primitive.bind(*map(jax.numpy.asarray, operands), **eqn.params)
    return [np.asarray(x) for x in (results if eqn.primitive.multiple_results else [results])]


def _listed(result: Any, count: int) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else [result] * count


def _require_same_length(several: Sequence[Sequence[Any]], verb: str) -> None:
    if len({len(each) for each in several}) != 1:
        raise UnprovenError(f"{verb} other values in the trace for the global batch")


def _equal(one: Any, other: Any) -> bool:
    is_float = jax.numpy.issubdtype(one.dtype, jax.numpy.inexact)
    return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=is_float))
