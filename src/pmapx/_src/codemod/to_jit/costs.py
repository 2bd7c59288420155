"""What a call of a jitted function costs: its collectives, bytes, memory and compiles."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pmapx._src.audit.report.formatting import in_bytes

_COMPILED = "/jax/core/compile/backend_compile_duration"
# A form that sends, or needs, so much more than the other is not recommended.
_MORE = 1.1
_compiles = 0


def _count(event: str, *_: Any, **__: Any) -> None:
    global _compiles
    _compiles += event == _COMPILED


class Costs:
    """The costs of one function, as the program runs it."""

    def __init__(self) -> None:
        self.record: dict[str, Any] = {"compiles": 0}

    @contextlib.contextmanager
    def counted(self, times: int = 1) -> Iterator[None]:
        """Counts the compiles of a call; those of something inside it, which do not count, -1."""
        _listen()
        before = _compiles
        try:
            yield
        finally:
            self.record["compiles"] += times * (_compiles - before)

    def audit(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Notes the collectives and the memory of the compiled program."""
        from pmapx._src.audit.examine import report_on

        try:
            [found] = report_on(function, tuple(args), kwargs, None).functions
        except Exception as error:  # The program goes on, and its proof without this.
            self.record["problem"] = f"{type(error).__name__}: {error}"[:200]
            return
        kinds = collections.Counter[str]()
        for each in found.exchanges:
            kinds[each.kind] += each.times_at_least
        self.record["collectives"] = dict(kinds)
        self.record["sent"] = found.sent_in_a_call
        self.record["memory"] = None if found.memory is None else found.memory.total


def _listen() -> None:
    import jax

    if not getattr(_listen, "is_on", False):
        jax.monitoring.register_event_duration_secs_listener(_count)
        _listen.is_on = True  # type: ignore[attr-defined]


def in_words(jit: Mapping[str, Any], shard_map: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns lines that compare the costs of both forms, and which to prefer by them.

    >>> cost = {"collectives": {"all-reduce": 2}, "sent": 100, "memory": 4000, "compiles": 1}
    >>> in_words(cost, {**cost, "sent": 50})
    ('cost of a call: jax.jit 2 all-reduce, 100 B sent, 3.91 KiB per device, 1 compile; ...
    """
    if "sent" not in jit or "sent" not in shard_map:
        return ()
    line = f"cost of a call: jax.jit {_shown(jit)}; jax.shard_map {_shown(shard_map)}"
    less = {"sent": "sends less", "memory": "needs less memory"}
    worse = [words for name, words in less.items() if _is_more(jit, shard_map, name)]
    if not worse:
        return (line,)
    return line, f"jax.shard_map {' and '.join(worse)} here: prefer it if that limits the step"


def is_worse(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a form costs more than another."""
    return any(_is_more(one, other, name) for name in ("sent", "memory"))


def _is_more(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> bool:
    more, less = one.get(name), other.get(name)
    return more is not None and less is not None and more > _MORE * less


def _shown(cost: Mapping[str, Any]) -> str:
    kinds = [f"{count} {kind}" for kind, count in sorted(cost["collectives"].items())]
    parts = [", ".join(kinds) or "no collectives", f"{in_bytes(cost['sent'])} sent"]
    if cost["memory"] is not None:
        parts.append(f"{in_bytes(cost['memory'])} per device")
    compiles = cost["compiles"]
    return ", ".join([*parts, f"{compiles} compile{'s' * (compiles != 1)}"])
