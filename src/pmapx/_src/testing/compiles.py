"""How many programs JAX compiles, by the events that it publishes."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from jax import monitoring

_EVENT = "/jax/core/compile/backend_compile_duration"


class Count:
    """The programs that were compiled in a block."""

    def __init__(self) -> None:
        self.programs = 0


_open: list[Count] = []
_lock = threading.Lock()


@functools.cache
def _listen() -> None:
    """Counts for all blocks; JAX 0.8 has no public way to remove a listener."""

    def note(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == _EVENT:
            with _lock:
                for count in _open:
                    count.programs += 1

    monitoring.register_event_duration_secs_listener(note)


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Counts the programs that are compiled in a block.

    >>> import jax
    >>> with counted() as count:
    ...     _ = jax.jit(lambda x: x * 3 - 1)(2.0)
    >>> count.programs
    1
    """
    _listen()
    count = Count()
    _open.append(count)
    try:
        yield count
    finally:
        _open.remove(count)
