"""Contestants that take turns, and the best turn of each: how all benchmarks here measure."""

import argparse
import gc
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import jax

import pmapx


def best_of_turns(
    turns: dict[str, Callable[[], float]], seconds: float = 0, rounds: int = 3
) -> dict[str, float]:
    """The least that each turn returned, over rounds for `seconds` and at least `rounds`."""
    best = dict.fromkeys(turns, float("inf"))
    order = list(turns)
    taken = 0
    deadline = time.perf_counter() + seconds
    gc.collect()
    gc.disable()
    while taken < rounds or time.perf_counter() < deadline:
        for name in order:
            best[name] = min(best[name], turns[name]())
        order = order[1:] + order[:1]  # nobody always follows the same one
        taken += 1
    gc.enable()
    return best


def shown(us: float | None) -> str:
    if us is None:
        return "refused"
    return f"{us:.1f} µs" if us < 1e3 else f"{us / 1e3:.2f} ms"


def described_machine() -> str:
    return (
        f"pmapx {pmapx.__version__}, JAX {jax.__version__}, Python {platform.python_version()}, "
        f"{described_devices()} on {os.cpu_count()} cores"
    )


def described_devices() -> str:
    backend = jax.default_backend()
    if jax.process_count() > 1:
        return f"{jax.process_count()} processes of {jax.local_device_count()} {backend} devices"
    return f"{jax.device_count()} {backend} devices"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; columns whose names begin with > are aligned to the right."""
    head = " | ".join(name.lstrip(">") for name in columns)
    rule = "|".join("--:" if name.startswith(">") else "---" for name in columns)
    return [f"| {head} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]


def parser_of(doc: str) -> argparse.ArgumentParser:
    """A parser that shows a benchmark's docstring as its help."""
    summary, _, details = doc.partition("\n\n")
    return argparse.ArgumentParser(
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run(main: Callable[[], int | None]) -> NoReturn:
    """Ends with the status that `main` returns; Ctrl-C is no traceback."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        sys.exit(130)
