"""What a call of a jitted function costs: its collectives, bytes, memory and compiles."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pmapx._src.pages.formatting import in_bytes, in_seconds

_COMPILED = "/jax/core/compile/backend_compile_duration"
# A form that sends or needs this much more than the other is not recommended.
_MORE = 1.1
_compiles = 0


def _count(event: str, *_: Any, **__: Any) -> None:
    global _compiles
    _compiles += event == _COMPILED


class Costs:
    """The costs of one function, as the program runs it, and for a target topology."""

    def __init__(self, topology: str | None = None) -> None:
        self.record: dict[str, Any] = {"compiles": 0}
        self._topology = topology

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
        self.record |= _figures(function, tuple(args), kwargs, None)
        if self._topology is not None:
            there = _figures(function, tuple(args), kwargs, self._topology)
            self.record["there"] = {"topology": self._topology, **there}


def _figures(
    function: Callable[..., Any], args: Any, kwargs: Any, topology: str | None
) -> dict[str, Any]:
    from pmapx._src.audit.examine import report_on

    try:
        [found] = report_on(function, args, kwargs, topology).functions
    except Exception as error:  # The program goes on, and its proof without this.
        return {"problem": f"{type(error).__name__}: {error}".partition("\n")[0][:200]}
    kinds = collections.Counter[str]()
    for each in found.exchanges:
        kinds[each.kind] += each.times_at_least
    memory = found.memory
    return {
        "collectives": dict(kinds),
        "sent": found.sent_in_a_call,
        "memory": None if memory is None else memory.total,
        "outputs": 0 if memory is None else memory.outputs - memory.aliases,
        "temporaries": 0 if memory is None else memory.temporaries,
        "arguments": {leaf.path: leaf.bytes_a_device for leaf in found.arguments},
        "devices": found.device_count,
        "seconds": found.seconds_in_a_call,
    }


def _listen() -> None:
    import jax

    if not getattr(_listen, "is_on", False):
        jax.monitoring.register_event_duration_secs_listener(_count)
        _listen.is_on = True  # type: ignore[attr-defined]


def in_words(jit: Mapping[str, Any], shard_map: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns lines that compare the costs of both forms, and which to prefer by them.

    >>> cost = {"collectives": {"all-reduce": 2}, "sent": 100, "memory": 4000, "compiles": 1,
    ...         "seconds": None}
    >>> in_words(cost, {**cost, "sent": 50})
    ('cost of a call: jax.jit 2 all-reduce, 100 B sent, 3.91 KiB per device, 1 compile; ...
    """
    here = _compared("", jit, shard_map)
    if "there" not in jit or "there" not in shard_map:
        return here
    return *here, *_compared(f" on {jit['there']['topology']}", jit["there"], shard_map["there"])


def _compared(where: str, jit: Mapping[str, Any], shard_map: Mapping[str, Any]) -> tuple[str, ...]:
    for name, cost in (("jax.jit", jit), ("jax.shard_map", shard_map)):
        if "sent" not in cost:
            why = cost.get("problem", "") if where else ""
            return (f"cost of a call{where}: not known for {name}: {why}",) * bool(why)
    # An array that is not placed before the call does not grow with the devices.
    if where and sum(jit["arguments"].values()) != sum(shard_map["arguments"].values()):
        return (f"cost of a call{where}: not known for jax.jit: its batch is not placed before it",)
    line = f"cost of a call{where}: jax.jit {_shown(jit)}; jax.shard_map {_shown(shard_map)}"
    less = {"sent": "sends less", "memory": "needs less memory"}
    worse = [words for name, words in less.items() if _is_more(jit, shard_map, name)]
    if not worse:
        return (line,)
    words = f"{' and '.join(worse)}{where or ' here'}"
    return line, f"jax.shard_map {words}: prefer it if that limits the step"


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
    if cost["seconds"] is not None:
        parts.append(f"{in_seconds(cost['seconds'])} in collectives")
    compiles = cost.get("compiles")
    counted = [] if compiles is None else [f"{compiles} compile{'s' * (compiles != 1)}"]
    return ", ".join([*parts, *counted])
