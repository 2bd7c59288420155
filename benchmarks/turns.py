"""Contestants that take turns, and the best turn of each: how all benchmarks here measure."""

import gc
import os
import platform
import time
from collections.abc import Callable

import jax

import pmapx


def best_of_turns(turns: dict[str, Callable[[], float]], seconds: float) -> dict[str, float]:
    """The least that each turn returned, over rounds for `seconds` and at least three."""
    best = dict.fromkeys(turns, float("inf"))
    order = list(turns)
    rounds = 0
    deadline = time.perf_counter() + seconds
    gc.collect()
    gc.disable()
    while rounds < 3 or time.perf_counter() < deadline:
        for name in order:
            best[name] = min(best[name], turns[name]())
        order = order[1:] + order[:1]  # nobody always follows the same one
        rounds += 1
    gc.enable()
    return best


def shown(us: float | None) -> str:
    if us is None:
        return "refused"
    return f"{us:.1f} µs" if us < 1e3 else f"{us / 1e3:.2f} ms"


def described_machine() -> str:
    return (
        f"pmapx {pmapx.__version__}, JAX {jax.__version__}, Python {platform.python_version()}, "
        f"{jax.device_count()} {jax.default_backend()} devices on {os.cpu_count()} cores"
    )
