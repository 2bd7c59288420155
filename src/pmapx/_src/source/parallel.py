"""The same work on many items, in a given number of processes."""

import contextlib
import os
import pickle
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
_NUMBER = struct.Struct("<I")


def can_fork() -> bool:
    """Returns whether this process may be copied: not with threads that hold locks, as JAX's do."""
    is_alone = threading.active_count() == 1 and "jax" not in sys.modules
    return sys.platform == "linux" and is_alone


def processors() -> int:
    """Returns how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def each(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    processes: int,
    advance: Progress,
) -> list[Result]:
    """Returns what ``work`` makes of each item, in their order, whatever ``processes`` is.

    >>> each(len, ["a", "bb"], 1, lambda done, total: None)
    [1, 2]
    """
    processes = min(processes, len(items))
    if processes <= 1:
        return _counted(map(work, items), len(items), advance)
    if can_fork():
        return _in_copies(work, items, processes, advance)
    # These cost a command more to import than many a check takes.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        return _counted(pool.map(work, items), len(items), advance)


def _counted(results: Iterable[Result], total: int, advance: Progress) -> list[Result]:
    found = []
    for done, result in enumerate(results, start=1):
        found.append(result)
        advance(done, total)
    return found


def _in_copies(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    processes: int,
    advance: Progress,
) -> list[Result]:
    """Copies of this process take numbers of items from one pipe, and so does this process."""
    numbers, numbered = os.pipe()
    os.write(numbered, b"".join(map(_NUMBER.pack, range(len(items)))))
    os.close(numbered)
    children: dict[int, int] = {}
    results: dict[int, Result] = {}
    try:
        for _ in range(processes - 1):
            answers, answered = os.pipe()
            child = os.fork()
            if child == 0:
                _be_a_copy(work, items, numbers, answered)
            os.close(answered)
            children[child] = answers
        while (number := _next(numbers)) is not None:
            results[number] = work(items[number])
            advance(number, len(items))
        for answers in children.values():
            with open(answers, "rb", closefd=False) as stream, contextlib.suppress(EOFError):
                results |= pickle.load(stream)
    finally:
        os.close(numbers)
        for child, answers in children.items():
            os.close(answers)
            # One that has not ended by now is not waited for: this process is being stopped.
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    # What a copy was killed over is done here, where it can be seen to fail.
    return [
        results[number] if number in results else work(item) for number, item in enumerate(items)
    ]


def _be_a_copy(
    work: Callable[[Item], Result], items: Sequence[Item], numbers: int, answered: int
) -> None:
    """Does items until there are none; never returns to what this process was a copy of."""
    try:
        done = {}
        while (number := _next(numbers)) is not None:
            done[number] = work(items[number])
        with open(answered, "wb") as stream:
            pickle.dump(done, stream, pickle.HIGHEST_PROTOCOL)
    finally:
        os._exit(0)


def _next(numbers: int) -> int | None:
    data = os.read(numbers, _NUMBER.size)
    return _NUMBER.unpack(data)[0] if data else None
