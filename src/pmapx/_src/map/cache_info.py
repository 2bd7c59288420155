"""What a pmapped function traced, compiled and transferred; its warnings, each issued once."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator

from pmapx._src import errors
from pmapx._src.trees import names
from pmapx._src.trees.signature import Signature


@dataclasses.dataclass(frozen=True)
class Move:
    """An argument that was transferred to where its program needs it, why, and how often.

    >>> Move("argument 0 'x'", "it is committed to cpu:0", 2).count
    2
    """

    argument: str
    reason: str
    count: int


@dataclasses.dataclass(frozen=True)
class CacheInfo:
    """What a pmapped function did so far.

    Attributes:
      traces: how often the function was traced.
      compiles: how many programs were compiled.
      calls: how often it was called.
      moved: the inputs that were transferred, with the reason and a count.
      reasons: why each program was compiled.

    Examples:
      >>> import numpy as np, pmapx
      >>> double = pmapx.pmap(lambda x: 2 * x)
      >>> for dtype in (np.float32, np.float32, np.int32):
      ...     _ = double(np.ones((1, 3), dtype))
      >>> info = double.cache_info()
      >>> info.calls, info.compiles, info.reasons
      (3, 2, ('first call', "argument 0 'x' was float32[1,3], is int32[1,3]"))
    """

    traces: int
    compiles: int
    calls: int
    moved: tuple[Move, ...]
    reasons: tuple[str, ...]


class CacheSize(int):
    """How many signatures a pmapped function has cached.

    The original's ``_cache_size`` is a number, that of ``jax.jit`` is a method; this is both.
    """

    def __call__(self) -> int:
        return int(self)


class _Counting(threading.local):
    statistics: CallStatistics | None = None


_counting = _Counting()


def count_trace() -> None:
    """Counts a trace for the pmapped function whose call led to it."""
    if _counting.statistics is not None:
        _counting.statistics.traces.append(None)


class CallStatistics:
    """The counts of one pmapped function, and the warnings it has issued."""

    def __init__(self, parameters: tuple[str, ...]) -> None:
        self.function = "a function"
        self.traces: list[None] = []  # One entry each, as appending is atomic.
        self.count_calls: Callable[[], int] = lambda: 0  # Never reset.
        self.parameters = parameters
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        self.clear()
        _all.append(weakref.ref(self, _all.remove))

    def clear(self) -> None:
        """Starts at zero again; warnings are not repeated."""
        with self._lock:
            self.traces.clear()
            self._calls_before = self.count_calls()
            self._reasons: list[str] = []
            self._transfers: dict[tuple[str, str], int] = {}

    @contextlib.contextmanager
    def counting_traces(self) -> Iterator[None]:
        """Counts the traces of this thread here: equal pmaps share the program that is traced."""
        outer, _counting.statistics = _counting.statistics, self
        try:
            yield
        finally:
            _counting.statistics = outer

    def note_compile(self, signature: Signature, before: Signature | None) -> None:
        """Notes that a program was compiled, and why, given the signature compiled last."""
        with self._lock:
            self._reasons.append(self._explain(signature, before))

    def _explain(self, signature: Signature, before: Signature | None) -> str:
        if before is None:
            return "the caches were cleared" if self._reasons else "first call"
        if before.static != signature.static:
            return "static arguments changed"
        if before.tree != signature.tree or before.positions != signature.positions:
            return "the structure of the arguments changed"
        for index, (old, new) in enumerate(zip(before.leaves, signature.leaves, strict=True)):
            if old != new:
                name = names.leaf(signature.paths[index], signature.positions, self.parameters)
                weak = "" if str(old) != str(new) else " (weak type changed)"
                return f"{name} was {old}, is {new}{weak}"
        return "a setting of JAX that programs depend on changed"

    def note_transfer(self, argument: str, reason: str) -> None:
        with self._lock:
            self._transfers[argument, reason] = self._transfers.get((argument, reason), 0) + 1

    def warn_once(self, warnings: Iterable[errors.PmapxWarning]) -> None:
        for warning in warnings:
            if str(warning) not in self._warned:
                errors.warn(warning)  # Where warnings are errors, the next call has to raise too.
                self._warned.add(str(warning))

    def read(self) -> CacheInfo:
        with self._lock:
            moved = tuple(Move(*transfer, count) for transfer, count in self._transfers.items())
            return CacheInfo(
                traces=len(self.traces),
                compiles=len(self._reasons),
                calls=self.count_calls() - self._calls_before,
                moved=moved,
                reasons=tuple(self._reasons),
            )


_all: list[weakref.ref[CallStatistics]] = []


def all_statistics() -> list[CallStatistics]:
    found = [reference() for reference in list(_all)]
    return [statistics for statistics in found if statistics is not None]
