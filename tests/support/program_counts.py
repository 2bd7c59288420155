"""Traces and compiles, counted from the events that JAX reports to `jax.monitoring`."""

from contextlib import contextmanager
from dataclasses import dataclass, field

import jax

# The names are the same in JAX 0.8.0, 0.10.2 and 0.12.0.1; each comes with `fun_name`.
TRACE_EVENT = "/jax/core/compile/jaxpr_trace_duration"
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


@dataclass
class Counts:
    """The names of the functions traced and compiled, in order."""

    traced: list[str] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)

    def traces_of(self, name):
        return sum(name in traced for traced in self.traced)

    def compiles_of(self, name):
        return sum(name in compiled for compiled in self.compiled)


_listening: list[Counts] = []


def _listen(event, duration, **metadata):
    name = str(metadata.get("fun_name"))
    for counts in _listening:
        if event == TRACE_EVENT:
            counts.traced.append(name)
        elif event == COMPILE_EVENT:
            counts.compiled.append(name)


# For good: JAX 0.8 has no public way to take one listener away.
jax.monitoring.register_event_duration_secs_listener(_listen)


@contextmanager
def counting():
    """Everything that is traced or compiled in the block, as `Counts`."""
    counts = Counts()
    _listening.append(counts)
    try:
        yield counts
    finally:
        _listening.remove(counts)
