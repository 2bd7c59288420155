"""How the processes of a program end when one of them fails: within seconds, naming the cause.

At exit, JAX waits up to five minutes for the other processes, while these wait in a collective for
this one. Therefore, a process whose program ends with an exception or a non-zero status reports
this to its peers and to the launcher, runs its exit handlers, and ends without JAX's exit barrier.
Its peers report the process and its exception, and end too.
"""

import atexit
import contextlib
import dataclasses
import logging
import os
import re
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import jax

from pmapx._src import fastpath
from pmapx._src.distributed import failure_record, key_value_store, liveness
from pmapx._src.distributed.failure_record import Failure
from pmapx._src.errors.base import package_folders

FIRST = "pmapx/failed"
LEFT = "pmapx/left"
# Seconds for the program of a peer to end by itself.
GRACE = 2.0

_guarded: set[int] = set()
_lock = threading.Lock()
_first: list[Failure] = []  # The failure that ends this process: its own or a peer's.
_named: list[Failure] = []
_status: list[int] = []
_is_at_exit = threading.Event()


def guard() -> None:
    """Makes uncaught exceptions end this process at once; for a program started by Python."""
    if os.getpid() in _guarded:
        return
    _guarded.add(os.getpid())
    atexit.register(_at_exit)
    previous = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> Any:
        previous(kind, error, trace)
        if _is_fatal():
            end_after(error, trace)

    sys.excepthook = excepthook


def run_guarded(program: Callable[[], None]) -> None:
    """Runs a program; if it fails and there are other processes, this one ends at once."""
    _guarded.add(os.getpid())
    atexit.register(_at_exit)
    try:
        program()
    except BaseException as error:
        trace = program_traceback(error) or error.__traceback__
        # A forked child of the program reaches this too.
        if os.getpid() in _guarded and failure_record.exit_status(error) != 0:
            if _has_peers():
                _show(error, trace)
                end_after(error, trace)
            failure_record.write_for_launcher(failure_record.of_exception(_rank(), error, trace))
        raise


def is_at_exit() -> bool:
    return _is_at_exit.is_set()


def end_after(error: BaseException, trace: TracebackType | None) -> None:
    """Ends this process after an uncaught exception; returns if there are no other processes."""
    if not _has_peers():
        return
    here = _rank()
    failure = failure_record.of_exception(here, error, trace, _cause_of(error, here))
    first = _first[0] if _first else _report(failure)
    if first.process != here:
        failure = dataclasses.replace(failure, cause=first.process)
    failure_record.write_for_launcher(failure)
    _status.append(failure.status)
    if first.process != here:
        _name(first, with_trace=True)
    _end(failure.status, by_interrupt=isinstance(error, KeyboardInterrupt))


def follow(first: Failure) -> None:
    """Ends this process after a peer failed, unless its program ends by itself first."""
    with _lock:
        if _first or getattr(jax.config, "jax_enable_recoverability", False):
            return
        _first.append(first)
    _name(first)
    time.sleep(GRACE)
    if _status:
        time.sleep(10 * GRACE)  # Exit handlers run.
    else:
        _name(first, with_trace=True)
    _leave(first.status or 1)


def notice() -> Failure | None:
    text = key_value_store.get(FIRST)
    return None if text is None else failure_record.from_json(text)


def _cause_of(error: BaseException, here: int) -> int | None:
    """Returns the process that caused an exception, if another one failed first."""
    if _first:
        return None if _first[0].process == here else _first[0].process
    if not key_value_store.is_available():
        return None
    deadline = time.monotonic() + GRACE
    while True:
        first = key_value_store.attempted(notice)
        if first is not None and first.process != here:
            _first.append(first)
            return first.process
        gone = liveness.lost()
        if gone:
            for process in gone:
                liveness.name(process)
            return gone[0]
        if not _is_of_runtime(error) or time.monotonic() > deadline:
            return None
        time.sleep(0.05)


def _is_of_runtime(error: BaseException) -> bool:
    """Whether an error comes from the runtime, as when a peer is lost."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        return True
    # Errors during dispatch are ValueErrors that start with the status code.
    return isinstance(error, ValueError) and bool(re.match(r"[A-Z_]+: ", str(error)))


def _report(failure: Failure) -> Failure:
    """Reports a failure to the peers; returns the one that was reported first."""

    def publish() -> Failure | None:
        return None if key_value_store.put(FIRST, failure.as_json()) else notice()

    other = key_value_store.attempted(publish) if key_value_store.is_available() else None
    with _lock:
        if not _first:
            _first.append(other or failure)
    return _first[0]


def _end(status: int, *, by_interrupt: bool = False) -> NoReturn:
    """Does what Python does at exit, without JAX's exit barrier."""
    fastpath.drop_exit_barrier()
    getattr(threading, "_shutdown", lambda: None)()  # Waits for non-daemon threads.
    atexit._run_exitfuncs()
    if by_interrupt:
        _depart()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    _leave(status)


def _at_exit() -> None:
    """Runs at exit before JAX's handlers, which were registered earlier."""
    _is_at_exit.set()
    if _status and not fastpath.drop_exit_barrier():
        _leave(_status[0])  # The public twin: skips JAX's handler, which is next.


def _leave(status: int) -> NoReturn:
    _depart()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def _depart() -> None:
    """Tells the peers that this process ends; process 0, which runs the service, ends last."""
    liveness.say_goodbye()
    joined = fastpath.joined_as() if key_value_store.is_available() else None
    if joined is None:
        return
    here, count = joined
    key_value_store.attempted(lambda: key_value_store.put(f"{LEFT}/{here}", ""), GRACE)
    deadline = time.monotonic() + 2 * GRACE
    while here == 0 and time.monotonic() < deadline:
        left = key_value_store.attempted(lambda: key_value_store.entries(LEFT), GRACE)
        if left is None or len(left) >= count:
            return
        time.sleep(0.05)


def _name(first: Failure, *, with_trace: bool = False) -> None:
    """Prints which process failed first, with its traceback unless a launcher prints that."""
    lines = [f"pmapx: {first}"]
    if with_trace and failure_record.FILE not in os.environ:
        lines = [f"pmapx: the traceback of process {first.process}:", first.trace, *lines]
    elif _named:
        return
    _named.append(first)
    failure_record.say(*lines)


def _show(error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, trace)
    elif not isinstance(error.code, int):
        print(error.code, file=sys.stderr)


def without_pmapx_frames(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an excepthook that calls ``hook`` with the program's traceback."""

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> Any:
        trace = program_traceback(error.with_traceback(trace))
        hook(kind, error.with_traceback(trace), trace)

    return excepthook


def program_traceback(error: BaseException) -> TracebackType | None:
    """Returns the traceback of an error without frames of pmapx and runpy, also in its causes.

    With PMAPX_TRACEBACK or JAX_TRACEBACK_FILTERING=off it only lacks those above the program.
    """
    wants_all = os.environ.get("PMAPX_TRACEBACK", "") not in ("", "0")
    if wants_all or os.environ.get("JAX_TRACEBACK_FILTERING") == "off":
        trace = error.__traceback__
        while trace is not None and _is_internal(trace):
            trace = trace.tb_next
        return trace
    chained, seen = [error.__cause__, error.__context__], {id(error)}
    while chained:
        cause = chained.pop()
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            cause.__traceback__ = _without_internal_frames(cause.__traceback__)
            chained += [cause.__cause__, cause.__context__]
    return _without_internal_frames(error.__traceback__)


def _without_internal_frames(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    while trace is not None:
        if not _is_internal(trace):
            kept.append(trace)
        trace = trace.tb_next
    for each in reversed(kept):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace


def _is_internal(trace: TracebackType) -> bool:
    filename = trace.tb_frame.f_code.co_filename
    internal = (runpy.__file__, *package_folders("pmapx"), "<frozen runpy")
    return filename.startswith(internal)


def _is_fatal() -> bool:
    """Whether an excepthook was called because the program ended, not at a prompt or manually.

    Then no frame of the program is left, only excepthooks.
    """
    if threading.current_thread() is not threading.main_thread() or os.getpid() not in _guarded:
        return False
    if sys.flags.interactive or hasattr(sys, "ps1"):
        return False
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name not in ("<module>", "_run_module_as_main")


def _has_peers() -> bool:
    joined = fastpath.joined_as()
    return joined is not None and joined[1] > 1


def _rank() -> int:
    joined = fastpath.joined_as()
    return joined[0] if joined else int(os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
