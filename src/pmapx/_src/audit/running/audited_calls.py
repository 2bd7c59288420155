"""One mapped function of a running program: each signature examined once, each call counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pmapx._src import errors
from pmapx._src.audit import examine, findings
from pmapx._src.audit.report.data import AuditedFunction, History, MovedInput
from pmapx._src.audit.subject import Subject
from pmapx._src.audit.topology import interconnect
from pmapx._src.map.cache_info import CallStatistics

Make = Callable[[Any, Any], Subject | None]
"""Compiles a call's program; None if the function maps nothing."""


class AuditedCalls:
    """What was met of one function.

    Attributes:
      name: what it is called.
      record: what pmapx counts of it; None for a function of ``jax.jit``.
      mapped_at: the line that made it.
      static_argnums: the positions of its static arguments, whose values choose its program.
      skipped: why signatures could not be audited.
    """

    def __init__(
        self,
        name: str,
        record: CallStatistics | None,
        mapped_at: str,
        static_argnums: Sequence[int] = (),
    ) -> None:
        """Starts with nothing."""
        self.name = name
        self.static_argnums = static_argnums
        self.mapped_at = mapped_at
        self.record = record
        self.skipped: list[str] = []
        self._seen: dict[Any, _Signature | None] = {}
        self._order: list[_Signature] = []
        self._calls = 0

    def note_call(self, args: Any, kwargs: Any, make: Make) -> bool:
        """Notes a call that is about to run; says whether its signature is a new one."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return False
        # A program of pmapx is one for all placements, one of jax.jit is not.
        has_places = self.record is None
        static = tuple((type(args[n]), args[n]) for n in self.static_argnums if n < len(args))
        key = (tree, tuple(_signature_of(leaf, has_places) for leaf in leaves), static)
        is_new = key not in self._seen
        if is_new:
            self._seen[key] = None  # Until it is known to be one that maps.
            subject = make(args, kwargs)
            if subject is not None:
                latest = self._order[-1] if self._order else None
                signature = _Signature(subject, key, latest)
                self._seen[key] = signature
                self._order.append(signature)
        known = self._seen[key]
        if known is not None:
            self._calls += 1
            known.note_moves(leaves)
        return is_new and known is not None

    @property
    def is_known(self) -> bool:
        """Whether a signature of it was audited before."""
        return bool(self._order)

    def skip(self, error: Exception, what: str = "") -> None:
        """Notes that a signature could not be audited, or what of it."""
        text = str(error).strip()
        # Of ours, what to do belongs to it; of others, the rest is most often a trace.
        is_ours = isinstance(error, errors.PmapxError)
        first = text.partition("\n  code:" if is_ours else "\n")[0]
        said = f"{self.name}: {what}{type(error).__name__}: {' '.join(first.split())}"
        if said not in self.skipped:
            self.skipped.append(said)

    def assumptions(self) -> list[str]:
        """Returns what the estimates of time rest on."""
        return [line for signature in self._order for line in signature.assumptions]

    def audited(self) -> list[AuditedFunction]:
        """Returns what was found, each signature with the history of the function."""
        done = []
        for index, signature in enumerate(self._order):
            history = self._history(signature)
            if index > 0:  # What concerns the function is said with its first signature.
                history = dataclasses.replace(history, reasons=history.reasons[:1], moved=())
            function = dataclasses.replace(
                signature.function, history=history, mapped_at=self.mapped_at
            )
            done.append(dataclasses.replace(function, findings=findings.about(function)))
        return done

    def _history(self, signature: _Signature) -> History:
        moved: dict[tuple[str, str], MovedInput] = {}
        for each in self._order:
            for move in each.moved.values():
                before = moved.get((move.path, move.reason))
                count = move.count + (before.count if before else 0)
                moved[move.path, move.reason] = dataclasses.replace(move, count=count)
        reasons = tuple(each.reason for each in self._order)
        if self.record is None:
            return History(self._calls, None, len(reasons), reasons, tuple(moved.values()))
        info = self.record.read()
        told = examine.history_of(info, signature.subject)
        for move in told.moved:
            moved.setdefault((move.path, move.reason), move)
        return dataclasses.replace(told, calls=self._calls, moved=tuple(moved.values()))


class _Signature:
    """One signature of a function: what was found of its program, and inputs moved for it."""

    def __init__(self, subject: Subject, key: Any, before: _Signature | None) -> None:
        self.key = key
        self.reason = "first call" if before is None else _difference(before.key, key, subject)
        self.function = examine.examine(subject, History())
        self.assumptions = interconnect.fabric_of(subject.devices).assumptions()
        # The arrays of the call are not kept alive; what remains is names, types and places.
        self.subject = dataclasses.replace(
            subject, values=(), arguments=((), {}), compiled=None, jaxpr=None
        )
        self.moved: dict[tuple[int, str], MovedInput] = {}

    def note_moves(self, leaves: list[Any]) -> None:
        """Counts the arrays among the leaves that lie elsewhere than the program needs them."""
        wanted = self.subject.in_shardings
        if len(leaves) != len(wanted):
            return  # Some are static.
        for index, (leaf, sharding) in enumerate(zip(leaves, wanted, strict=True)):
            reason = examine.reason_to_move(leaf, sharding)
            if reason is not None:
                path, size = self.subject.in_paths[index], int(leaf.nbytes)
                before = self.moved.get((index, reason))
                count = 1 + (before.count if before else 0)
                self.moved[index, reason] = MovedInput(path, reason, count, size)


def _signature_of(leaf: Any, has_place: bool) -> Any:
    """Returns what of a leaf a program is compiled for."""
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
    """Says what is new in a signature against the one before."""
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
    return "something else than the arguments changed"


def _type(signature: Any) -> str:
    if len(signature) < 4:
        return str(signature[-1])
    shape, dtype, *_ = signature
    return f"{dtype}[{','.join(map(str, shape))}]"


def _at(signature: Any) -> str:
    sharding = signature[3] if len(signature) > 3 else None
    if sharding is None:
        return "from the host"
    if sharding.num_devices == 1:
        (device,) = sharding.device_set
        return f"on {device}"
    return f"as {getattr(sharding, 'spec', sharding)}"
