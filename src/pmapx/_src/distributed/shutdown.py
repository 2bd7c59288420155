"""How a process of several ends when its program fails: within seconds, and with the cause named.

At exit JAX waits for the other processes, up to five minutes, while these wait in a collective for
this one. So a process whose program ends with an exception or a non-zero status reports that to
its peers and to the launcher, runs its exit handlers, and ends without JAX's exit barrier. Its
peers name it and its exception, and end too.
"""

from __future__ import annotations

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

FIRST = "pmapx/failed"
LEFT = "pmapx/left"
# Seconds that the program of a peer has to end by itself.
GRACE = 2.0

_guarded: set[int] = set()
_lock = threading.Lock()
_first: list[Failure] = []  # The failure that ends this process: its own or a peer's.
_named: list[Failure] = []
_status: list[int] = []
_is_at_exit = threading.Event()


def guard() -> None:
    """Makes uncaught exceptions of this process end it at once; for a program run by Python."""
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
    """Runs a program; one that fails among several processes ends this one at once."""
    _guarded.add(os.getpid())
    atexit.register(_at_exit)
    try:
        program()
    except BaseException as error:
        trace = _of_program(error.__traceback__)
        # A child that the program forked comes here too.
        if os.getpid() in _guarded and failure_record.exit_status(error) != 0:
            if _has_peers():
                _show(error, trace)
                end_after(error, trace)
            failure_record.write_for_launcher(failure_record.of_exception(_rank(), error, trace))
        raise


def is_at_exit() -> bool:
    """Says whether the program has ended and exit handlers run."""
    return _is_at_exit.is_set()


def end_after(error: BaseException, trace: TracebackType | None) -> None:
    """Ends this process after an uncaught exception that was shown; returns if it is alone."""
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
    """Ends this process because a peer failed, unless its program ends by itself first."""
    with _lock:
        if _first or _is_recoverable():
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
    """Returns the first failure that a process reported, if any did."""
    text = key_value_store.get(FIRST)
    return None if text is None else failure_record.from_json(text)


def _cause_of(error: BaseException, here: int) -> int | None:
    """Returns the process that an exception is owed to, if another failed before this one."""
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
    """Says whether the runtime raised an error, as it does when a process is gone."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        return True
    # What fails as it is dispatched comes as another type, with the status code in front.
    return isinstance(error, ValueError) and bool(re.match(r"[A-Z_]+: ", str(error)))


def _report(failure: Failure) -> Failure:
    """Tells the peers of a failure; returns the one that was reported first."""

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
    getattr(threading, "_shutdown", lambda: None)()  # Waits for threads that are no daemons.
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
        _leave(_status[0])  # The public twin: JAX's handler is next.


def _leave(status: int) -> NoReturn:
    _depart()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def _depart() -> None:
    """Tells peers that this process ends; process 0, which runs the service, lets them go first."""
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
    """Prints who failed first; with the traceback, unless a launcher prints that last."""
    lines = [f"pmapx: {first}"]
    if with_trace and failure_record.FILE not in os.environ:
        lines = [f"pmapx: the traceback of process {first.process}:", first.trace, *lines]
    elif _named:
        return
    _named.append(first)
    # Past Python's buffers: JAX may be about to end the process.
    os.write(2, ("\n".join(lines) + "\n").encode(errors="replace"))


def _show(error: BaseException, trace: TracebackType | None) -> None:
    """Prints what Python prints of an uncaught exception."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, trace)
    elif not isinstance(error.code, int):
        print(error.code, file=sys.stderr)


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames that lead from ``pmapx run`` to the program."""
    shown = trace
    while shown is not None and _is_ours(shown):
        shown = shown.tb_next
    return shown if shown is not None else trace


def _is_ours(trace: TracebackType) -> bool:
    filename = trace.tb_frame.f_code.co_filename
    package = os.path.dirname(os.path.dirname(__file__))
    ours = (__file__, os.path.join(package, "legacy", "bootstrap.py"), runpy.__file__)
    return filename in ours or filename.startswith("<frozen runpy")


def _is_fatal() -> bool:
    """Says whether an excepthook was called because the program ended, not at a prompt or by hand.

    Then all frames of the program are gone; what is left are excepthooks.
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


def _is_recoverable() -> bool:
    return bool(getattr(jax.config, "jax_enable_recoverability", False))
