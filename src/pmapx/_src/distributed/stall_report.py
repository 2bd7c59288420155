"""Reports where each process waits: a thread of each publishes it, and process 0 compares.

If a process runs another program or shape than the others, or is suspended, they silently wait in a
collective. The thread also follows failed and lost peers.
"""

import contextlib
import dataclasses
import json
import linecache
import os
import sys
import sysconfig
import threading
import time
from types import FrameType

from pmapx._src import fastpath
from pmapx._src.distributed import key_value_store, launcher, liveness, shutdown
from pmapx._src.distributed.failure_record import say
from pmapx._src.errors.base import package_folders
from pmapx._src.map import cache_info

WAITING = "pmapx/waiting"
# Seconds without an update after which a process is reported as not answering.
SILENCE = 20.0
# A thread that waits in the kernel uses no CPU time.
_IDLE_SECONDS = 1e-4

_started: set[int] = set()


def watch(heartbeat_timeout: float = 100) -> None:
    """Starts the thread, once, in a process that is connected to others."""
    joined = fastpath.joined_as()
    if joined is None or joined[1] == 1 or os.getpid() in _started:
        return
    _started.add(os.getpid())
    silence = min(SILENCE, heartbeat_timeout / 2)
    watch = Watch(*joined, seconds_wanted(), silence)
    thread = threading.Thread(target=watch.run, name="pmapx watch", daemon=True)
    thread.start()

    def stop() -> None:
        # A thread that is in C++ while Python finalizes would crash the process.
        watch.is_over.set()
        thread.join(key_value_store.PATIENCE)
        if watch.exchange.is_alive():
            watch.exchange.join(key_value_store.PATIENCE)
        _started.discard(os.getpid())

    fastpath.after_shutdown(stop)


def seconds_wanted() -> float:
    """Returns the seconds without progress after which processes report; 0 for never."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(os.environ.get(launcher.STALL_REPORT) or 0))
    return 0.0


@dataclasses.dataclass(frozen=True)
class State:
    """The published state of a process."""

    beat: int  # Increases while the process runs.
    waited: float  # The seconds that its main thread has waited.
    where: str  # The line of the program that waits, and the latest pmapped calls.

    def __str__(self) -> str:
        how = f"has waited {self.waited:.0f} s" if self.waited >= 1 else "runs"
        return f"{how} {self.where}"


class Progress:
    """Whether the main thread of this process makes progress, and where it is."""

    def __init__(self) -> None:
        self._thread = threading.main_thread()
        self._last_progress = time.monotonic()
        self._used = self._time_used()
        self._place: object = None
        self._calls: dict[int, int] = {}
        self._latest = ""
        self._beat = 0

    def look(self) -> State:
        """Returns the state of the main thread, compared with the previous call."""
        now, used = time.monotonic(), self._time_used()
        frame = sys._current_frames().get(self._thread.ident or 0)
        place = None if frame is None else (id(frame), frame.f_lasti)
        called = self._note_calls()
        if called or place != self._place or used - self._used > _IDLE_SECONDS:
            self._last_progress = now
        self._used, self._place, self._beat = used, place, self._beat + 1
        return State(self._beat, now - self._last_progress, self._where(frame))

    def _time_used(self) -> float:
        """Returns the CPU time of the main thread; 0 if the platform does not provide it."""
        with contextlib.suppress(AttributeError, OSError):
            return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident or 0))
        return 0.0

    def _note_calls(self) -> bool:
        """Records which pmapped functions were called since the previous call of ``look``."""
        called = []
        for record in cache_info.all_statistics():
            total = record.count_calls()
            if self._calls.get(id(record), 0) != total:
                called.append(f"{record.function} (call {total})")
            self._calls[id(record)] = total
        if called:
            self._latest = ", ".join(sorted(called))
        return bool(called)

    def _where(self, frame: FrameType | None) -> str:
        if shutdown.is_at_exit():
            return "at exit: its program has ended"
        user = user_frame(frame)
        if user is None:
            return "outside of Python"
        file, line = user.f_code.co_filename, user.f_lineno
        code = linecache.getline(file, line).strip()
        where = f"at {file}:{line} in {user.f_code.co_name}"
        where += f": {code[:80]}" if code else ""
        return where + (f"; last pmapped calls: {self._latest}" if self._latest else "")


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame outside of JAX, pmapx, NumPy and the standard library."""
    innermost = frame
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_library_folders()):
            return frame
        frame = frame.f_back
    return innermost


def _library_folders() -> tuple[str, ...]:
    standard = [
        os.path.join(sysconfig.get_path("stdlib"), name)
        for name in ("threading.py", "queue.py", "contextlib.py", "concurrent", "runpy.py")
    ]
    return (*package_folders("pmapx", "jax", "jaxlib", "numpy"), *standard, "<frozen")


class Watch:
    """The thread of a process that publishes its state and reports failed and silent peers.

    ``is_over`` ends the thread; ``exchange`` is that of the latest exchange with the service.
    """

    def __init__(self, here: int, count: int, seconds: float, silence: float) -> None:
        """``seconds`` is the time without progress after which it reports; 0 for never."""
        self._here, self._seconds, self._silence = here, seconds, silence
        self._progress = Progress()
        self._peers = Peers(count, silence)
        self._has_reported = False
        self.is_over = threading.Event()
        self.exchange = threading.Thread()
        # The service answers all processes.
        self._interval = 1.0 + count / 128

    def run(self) -> None:
        while not self.is_over.is_set():
            state = self._progress.look()
            if key_value_store.is_available():
                self._exchange_in_time(state)
            self._report_own(state)
            self.is_over.wait(self._interval)

    def _exchange_in_time(self, state: State) -> None:
        """Exchanges states in a separate thread: a suspended service never answers."""
        if not self.exchange.is_alive():
            self.exchange = threading.Thread(target=self._exchange, args=(state,), daemon=True)
            self.exchange.start()
        self.exchange.join(self._silence / 4)
        if self._here != 0:
            self._peers.note_service(is_silent=self.exchange.is_alive())

    def _exchange(self, state: State) -> None:
        """Publishes this process's state; process 0 reads those of the others."""
        # Unreachable: the processes have ended, or JAX is about to end this one.
        with contextlib.suppress(key_value_store.UnreachableError):
            first = shutdown.notice()
            if first is not None and first.process != self._here:
                threading.Thread(target=shutdown.follow, args=(first,), daemon=True).start()
            if self._here != 0:
                text = json.dumps(dataclasses.astuple(state))
                key_value_store.put(f"{WAITING}/{self._here}", text, overwrite=True)
                return
            published = key_value_store.entries(WAITING)
            states = {int(key): State(*json.loads(text)) for key, text in published.items()}
            self._peers.compare({0: state, **states}, self._seconds)

    def _report_own(self, state: State) -> None:
        """Reports where this process waits, unless it is process 0, which reports for all."""
        is_stalled = 0 < self._seconds <= state.waited
        is_reported = self._here == 0 and key_value_store.is_available()
        if is_stalled and not self._has_reported and not is_reported:
            say(f"pmapx: process {self._here} {state}")
        self._has_reported = is_stalled


class Peers:
    """What a process knows about the others: which ones answer, and which were reported."""

    def __init__(self, count: int, silence: float) -> None:
        self._count, self._silence = count, silence
        self._beats: dict[int, tuple[int, float]] = {}
        self._silent: set[int] = set()
        self._reported: dict[int, float] = {}
        self._answered = time.monotonic()

    def note_service(self, *, is_silent: bool) -> None:
        """Records whether process 0, which runs the service, answers; reports it once if not."""
        now = time.monotonic()
        if not is_silent:
            self._answered = now
            self._silent.discard(0)
        elif now - self._answered >= self._silence / 2:
            self._say_silent(0, now - self._answered)

    def compare(self, states: dict[int, State], seconds: float) -> None:
        """Reports silent peers, and where all processes are once one has waited too long."""
        now = time.monotonic()
        for process, state in states.items():
            beat, since = self._beats.get(process, (-1, now))
            if state.beat != beat:
                self._beats[process] = (state.beat, now)
                self._silent.discard(process)
            elif now - since >= self._silence:
                self._say_silent(process, now - since)
        if seconds > 0 and any(self._is_new_stall(k, s, now, seconds) for k, s in states.items()):
            self._say_all(states, seconds, now)

    def _is_new_stall(self, process: int, state: State, now: float, seconds: float) -> bool:
        began = now - state.waited
        return state.waited >= seconds and began > self._reported.get(process, 0.0)

    def _say_all(self, states: dict[int, State], seconds: float, now: float) -> None:
        lines = [f"pmapx: no progress for {seconds:g} s. Where each process is:"]
        for process in range(self._count):
            state = states.get(process)
            _, since = self._beats.get(process, (0, now))
            silent = f"; it has not answered for {now - since:.0f} s" * (process in self._silent)
            known = state or "has published nothing yet"
            lines.append(f"pmapx:   process {process} {known}{silent}")
            if state is not None and state.waited >= seconds / 2:
                self._reported[process] = now
        say(*lines)

    def _say_silent(self, process: int, seconds: float) -> None:
        if process not in self._silent and not liveness.was_lost(process):
            self._silent.add(process)
            say(f"pmapx: process {process} has not answered for {seconds:.0f} s (is it stopped?)")
