"""The calls of one mapped function: each signature is audited once, each call counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pmapx._src import errors
from pmapx._src.audit import examine, findings
from pmapx._src.audit.report.audit_report import AuditedFunction, History, MovedInput
from pmapx._src.audit.running.merge_reports import once_each_move
from pmapx._src.audit.subject import Subject
from pmapx._src.audit.topology import interconnect
from pmapx._src.map.cache_info import CallStatistics
from pmapx._src.trees.names import Abstract

Make = Callable[[Any, Any], Subject | None]
"""Compiles a call's program; None if there is no mapped function in it."""


@dataclasses.dataclass(eq=False)
class AuditedCalls:
    """The signatures that one function was called with."""

    name: str
    record: CallStatistics | None  # What pmapx counts of it; None for a function of ``jax.jit``.
    mapped_at: str  # The line that made it.
    static_argnums: Sequence[int] = ()  # The positions of its static arguments.
    # Whether the program is compiled for the devices that its inputs are on.
    is_placed_here: bool = True
    with_fsdp: bool = False  # Whether the cost with FSDP is wanted.
    # Why signatures could not be audited.
    skipped: list[str] = dataclasses.field(default_factory=list)
    _seen: dict[Any, _Signature | None] = dataclasses.field(default_factory=dict)
    _order: list[_Signature] = dataclasses.field(default_factory=list)
    _calls: int = 0

    def __post_init__(self) -> None:
        # Input placement is part of the cache key of jax.jit, and not of pmapx.
        self.is_keyed_by_placement = self.record is None

    def note_call(self, args: Any, kwargs: Any, make: Make) -> bool:
        """Notes a call that is about to run; returns whether its signature is new."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return False
        has_places = self.is_keyed_by_placement
        static = tuple((type(args[n]), args[n]) for n in self.static_argnums if n < len(args))
        key = (tree, tuple(_signature_of(leaf, has_places) for leaf in leaves), static)
        is_new = key not in self._seen
        if is_new:
            self._seen[key] = None  # Until a mapped function is found in it.
            subject = make(args, kwargs)
            if subject is not None:
                latest = self._order[-1] if self._order else None
                signature = _Signature(subject, key, latest, self.with_fsdp)
                self._seen[key] = signature
                self._order.append(signature)
        known = self._seen[key]
        if known is not None:
            self._calls += 1
            if self.is_placed_here:
                known.note_moves(leaves)
        return is_new and known is not None

    @property
    def is_known(self) -> bool:
        return bool(self._order)

    def skip(self, error: Exception, what: str = "") -> None:
        """Notes that a signature, or a part of its audit, could not be audited."""
        text = str(error).strip()
        # Our errors include the fix; the further lines of others are most often a traceback.
        is_ours = isinstance(error, errors.PmapxError)
        first = text.partition("\n  code:" if is_ours else "\n")[0]
        line = f"{self.name}: {what}{type(error).__name__}: {' '.join(first.split())}"
        if line not in self.skipped:
            self.skipped.append(line)

    def assumptions(self) -> list[str]:
        return [line for signature in self._order for line in signature.assumptions]

    def audited(self) -> list[AuditedFunction]:
        """Returns each signature with the history of the function."""
        done = []
        for index, signature in enumerate(self._order):
            history = self._history(signature)
            if index > 0:  # The function's history is with its first signature.
                history = dataclasses.replace(history, reasons=history.reasons[:1], moved=())
            function = dataclasses.replace(
                signature.function, history=history, mapped_at=self.mapped_at
            )
            done.append(dataclasses.replace(function, findings=findings.about(function)))
        return done

    def _history(self, signature: _Signature) -> History:
        moved = once_each_move(move for each in self._order for move in each.moved)
        reasons = tuple(each.reason for each in self._order)
        if self.record is None:
            return History(self._calls, None, len(reasons), reasons, moved)
        recorded = examine.history_of(self.record.read(), signature.subject)
        if not self.is_placed_here:
            return dataclasses.replace(recorded, calls=self._calls, moved=())
        known = {(move.path, move.reason) for move in moved}
        more = [move for move in recorded.moved if (move.path, move.reason) not in known]
        return dataclasses.replace(recorded, calls=self._calls, moved=(*moved, *more))


class _Signature:
    """One signature of a function: the audit of its program, and inputs transferred for it."""

    def __init__(
        self, subject: Subject, key: Any, before: _Signature | None, with_fsdp: bool
    ) -> None:
        self.key = key
        self.reason = "first call" if before is None else _difference(before.key, key, subject)
        self.function = examine.examine(subject, History(), with_fsdp)
        self.assumptions = interconnect.fabric_of(subject.devices).assumptions()
        # The arrays of the call are not kept alive.
        self.subject = dataclasses.replace(
            subject, values=(), arguments=((), {}), compiled=None, jaxpr=None, again=None
        )
        self.moved: tuple[MovedInput, ...] = ()

    def note_moves(self, leaves: list[Any]) -> None:
        """Counts the leaves that have to be transferred."""
        paths, shardings = self.subject.in_paths, self.subject.in_shardings
        if len(leaves) != len(shardings):
            return  # Some are static.
        for path, leaf, sharding in zip(paths, leaves, shardings, strict=True):
            reason = examine.reason_to_move(leaf, sharding)
            if reason is not None:
                move = MovedInput(path, reason, 1, int(leaf.nbytes))
                self.moved = once_each_move([*self.moved, move])


def _signature_of(leaf: Any, has_place: bool) -> Any:
    """Returns the properties of a leaf that a program is compiled for."""
    try:
        aval = jax.typeof(leaf)
    except TypeError:  # A static argument.
        try:
            hash(leaf)
        except TypeError:
            return type(leaf), id(leaf)
        return type(leaf), leaf
    sharding = leaf.sharding if has_place and isinstance(leaf, jax.Array) else None
    return aval.shape, aval.dtype, bool(getattr(aval, "weak_type", False)), sharding


def _difference(before: Any, after: Any, subject: Subject) -> str:
    """Describes the difference of a signature to the one before."""
    if before[0] != after[0]:
        return "the structure of the arguments changed"
    if len(after[1]) != len(subject.in_paths):
        return "static arguments changed"
    for path, old, new in zip(subject.in_paths, before[1], after[1], strict=True):
        if old != new:
            if old[:2] != new[:2]:
                return f"{path} was {_type(old)}, is {_type(new)}"
            weak = " (weak type changed)" if old[2:3] != new[2:3] else ""
            return f"{path} was {_type(old)} {_at(old)}, is {_type(new)} {_at(new)}{weak}"
    return "something other than the arguments changed"


def _type(signature: Any) -> str:
    if len(signature) < 4:
        return str(signature[-1])
    return str(Abstract(*signature[:3]))


def _at(signature: Any) -> str:
    sharding = signature[3] if len(signature) > 3 else None
    if sharding is None:
        return "from the host"
    if sharding.num_devices == 1:
        (device,) = sharding.device_set
        return f"on {device}"
    return f"as {getattr(sharding, 'spec', sharding)}"
