"""``launch``: runs the processes of a multi-host program on this machine.

Each process gets the environment variables that ``jax.distributed.initialize()`` reads, has its own
virtual devices, and communicates over loopback. Their output is merged, each line prefixed with the
index of its process. When one fails, the others are stopped and its traceback is printed last. No
process outlives the launcher, however that ends.
"""

import collections
import contextlib
import ctypes
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from pmapx._src.distributed import failure_record

DEVICES_FLAG = "--xla_force_host_platform_device_count"
COLORS = (36, 33, 35, 32, 34, 31)
FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
KEPT_LINES = 20
# Read by `pmapx._src.distributed.stall_report`.
STALL_REPORT = "PMAPX_STALL_REPORT"
STALL_SECONDS = "60"
# If set, `pmapx run` starts processes without patching JAX.
PLAIN = "PMAPX_RUN_PLAIN"


def launch(
    n: int,
    devices_per_process: int | None,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    grace: float = 5.0,
    logs: str | os.PathLike[str] | None = None,
    stall_report: float | None = None,
) -> int:
    """Runs ``n`` processes of a command until all have ended; returns a single exit status.

    Examples:
      >>> import sys
      >>> launch(2, 1, [sys.executable, "-c", "print('hello')"])  # doctest: +SKIP
      [0] hello
      [1] hello
      0

    Args:
      n: the number of processes.
      devices_per_process: the number of virtual CPU devices of each process; None does not change
        its devices.
      argv: the command, the same for all processes.
      env: the environment variables; by default those of this process.
      grace: seconds that processes have to end by themselves before they are killed.
      logs: a directory for a log file per process, in addition to the output; created if missing.
      stall_report: seconds without progress after which each process reports where it waits;
        0 disables it, None means PMAPX_STALL_REPORT, or 60.

    Returns:
      0 if all processes exit with 0; otherwise the status of the first that failed, 128 + k for
      signal k.
    """
    with reserved_port() as port, contextlib.ExitStack() as undo:
        workers = Workers(grace, undo.enter_context(tempfile.TemporaryDirectory(prefix="pmapx-")))
        undo.callback(workers.kill)
        undo.enter_context(workers.forwarded_signals())
        inherited = dict(os.environ if env is None else env)
        if stall_report is not None:
            inherited[STALL_REPORT] = f"{stall_report:g}"
        inherited.setdefault(STALL_REPORT, STALL_SECONDS)
        for rank in range(n):
            log = None
            if logs is not None:
                os.makedirs(logs, exist_ok=True)
                log = undo.enter_context(open(os.path.join(logs, log_name(rank, n)), "wb"))
            chosen = environment(inherited, rank, n, port, devices_per_process)
            workers.start(rank, argv, chosen, log)
        return workers.wait()


def log_name(rank: int, n: int) -> str:
    """Returns the name of the log file of process ``rank`` of ``n``; names sort by rank.

    >>> log_name(3, 16)
    'process-03.log'
    """
    return f"process-{rank:0{len(str(n - 1))}}.log"


def environment(
    inherited: Mapping[str, str], rank: int, n: int, port: int, devices: int | None
) -> dict[str, str]:
    """Returns the environment variables of process ``rank`` of ``n``.

    JAX reads the rank and the number of processes from Open MPI's variables, and the coordinator
    address from its own.
    """
    return {
        **with_devices(inherited, devices),
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}",
        "OMPI_MCA_orte_hnp_uri": f"{port << 12}.0;tcp://127.0.0.1:{port}",
        "OMPI_COMM_WORLD_SIZE": str(n),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "PYTHONUNBUFFERED": "1",
        "PMAPX_LAUNCHED": "1",
    }


def with_devices(inherited: Mapping[str, str], devices: int | None) -> dict[str, str]:
    """Returns environment variables for the given number of virtual CPU devices, if any.

    >>> with_devices({"XLA_FLAGS": "--xla_dump_to=here"}, 4)["XLA_FLAGS"]
    '--xla_dump_to=here --xla_force_host_platform_device_count=4'
    """
    chosen = dict(inherited)
    if devices is not None:
        others = re.sub(rf"{DEVICES_FLAG}=\S*", "", chosen.get("XLA_FLAGS", "")).strip()
        chosen["XLA_FLAGS"] = f"{others} {DEVICES_FLAG}={devices}".strip()
        chosen["JAX_PLATFORMS"] = "cpu"
    return chosen


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserves a free loopback port for the duration of the block.

    The reserving socket does not listen; the coordinator shares the port by SO_REUSEPORT.
    """
    with socket.socket() as holder:
        if hasattr(socket, "SO_REUSEPORT"):
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        if not hasattr(socket, "SO_REUSEPORT"):
            holder.close()
        yield port


class Workers:
    def __init__(self, grace: float, folder: str) -> None:
        """``folder`` is where processes report their failures."""
        self._grace = grace
        self._folder = folder
        self._reports: dict[int, str] = {}
        self._logs: list[IO[bytes] | None] = []
        self._stopped: set[int] = set()
        self._stopped_at_failure: set[int] = set()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ended: queue.SimpleQueue[tuple[int, int, float] | None] = queue.SimpleQueue()
        self._last_lines: list[collections.deque[str]] = []
        self._readers: list[threading.Thread] = []
        self._writing = threading.Lock()
        self._signal: signal.Signals | None = None

    def start(
        self, rank: int, argv: Sequence[str], env: Mapping[str, str], log: IO[bytes] | None = None
    ) -> None:
        self._reports[rank] = os.path.join(self._folder, f"{rank}.json")
        self._logs.append(log)
        process = subprocess.Popen(
            argv,
            env={**env, failure_record.FILE: self._reports[rank]},
            stdin=None if rank == 0 else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        self._processes.append(process)
        self._last_lines.append(collections.deque(maxlen=KEPT_LINES))

    def wait(self) -> int:
        """Forwards output until all processes have ended; returns the exit status."""
        for rank, process in enumerate(self._processes):
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                reader = threading.Thread(
                    target=self._forward_output, args=(rank, source, target), daemon=True
                )
                reader.start()
                self._readers.append(reader)
            threading.Thread(target=self._await_end, args=(rank, process), daemon=True).start()
        running = set(range(len(self._processes)))
        ended: dict[int, tuple[int, float]] = {}
        deadline: float | None = None
        while running:
            try:
                # Signal handlers run between waits, whichever thread received the signal.
                event = self._ended.get(timeout=0.1)
                if event is None:  # A terminating signal: the processes get the grace period.
                    deadline = deadline or time.monotonic() + self._grace
                else:
                    rank, status, at = event
                    running.discard(rank)
                    ended[rank] = status, at
            except queue.Empty:
                if deadline is None:
                    self._name_stopped(running)
                elif time.monotonic() > deadline:
                    self.kill()
            reported = failure_record.read(self._reports)
            has_failed = reported or any(status for status, _ in ended.values())
            if has_failed and deadline is None:
                self._stopped_at_failure = set(self._stopped)
                self._stop(running - set(reported))
                deadline = time.monotonic() + self._grace
        self.kill()
        for reader in self._readers:
            reader.join(timeout=1.0)
        return self._conclusion(ended, failure_record.read(self._reports))

    def _name_stopped(self, ranks: set[int]) -> None:
        """Reports processes that are suspended by a signal (Linux)."""
        now = {rank for rank in ranks if _is_stopped(self._processes[rank].pid)}
        for rank in sorted(now - self._stopped):
            pid = self._processes[rank].pid
            with self._writing:
                print(
                    f"pmapx: process {rank} is stopped by a signal (SIGSTOP); the others wait for "
                    f"it. To continue: kill -CONT {pid}",
                    file=sys.stderr,
                    flush=True,
                )
        self._stopped = now

    def _stop(self, ranks: set[int]) -> None:
        """Terminates processes, after a moment for those that end by themselves to report why."""

        def ask() -> None:
            for rank in ranks:
                self._send(self._processes[rank], signal.SIGTERM)

        asking = threading.Timer(min(1.0, self._grace / 2), ask)
        asking.daemon = True
        asking.start()

    def kill(self) -> None:
        for process in self._processes:
            self._send(process, signal.SIGKILL)

    @staticmethod
    def _send(process: subprocess.Popen[bytes], number: int) -> None:
        # The process group exists as long as any child of its leader runs.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)

    @contextlib.contextmanager
    def forwarded_signals(self) -> Iterator[None]:
        """Forwards signals to all processes; the second terminating signal kills them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def forward(number: int, frame: Any) -> None:
            is_end = signal.Signals(number).name in ENDING
            if is_end and self._signal is not None:
                self.kill()
            for process in self._processes:
                self._send(process, number)
            if is_end:
                self._signal = signal.Signals(number)
                self._ended.put(None)

        numbers = [getattr(signal, name) for name in FORWARDED if hasattr(signal, name)]
        before = {number: signal.signal(number, forward) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _await_end(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self._ended.put((rank, process.wait(), time.monotonic()))

    def _forward_output(self, rank: int, source: IO[bytes], target: IO[str]) -> None:
        """Copies the output of a process by lines, prefixed with its rank."""
        prefix = _prefix(rank, len(self._processes), target)
        for raw in source:
            line = raw.decode(errors="replace").rstrip("\n")
            self._last_lines[rank].append(line)
            log = self._logs[rank]
            with self._writing, contextlib.suppress(BrokenPipeError, ValueError):
                if log is not None:
                    log.write(raw)
                    log.flush()
                target.write(f"{prefix}{line}\n")
                target.flush()

    def _conclusion(
        self, ended: Mapping[int, tuple[int, float]], reported: Mapping[int, failure_record.Failure]
    ) -> int:
        if self._signal is not None:
            print(f"pmapx: stopped by {self._signal.name}", file=sys.stderr)
            return 128 + self._signal.value
        rank = first_to_fail(ended, reported)
        if rank is None:
            return 0
        report = reported.get(rank)
        status = ended[rank][0] if report is None else report.status
        how = f"exit status {status}" if status > 0 else f"signal {_signal_name(-status)}"
        lines = [_FAILED.format(rank=rank, how=how)]
        lines += [
            f"pmapx: process {k} was stopped by a signal at that time."
            for k in sorted(self._stopped_at_failure)
        ]
        if report is not None:
            lines += [f"pmapx: the traceback of process {rank}:", report.trace]
        elif self._last_lines[rank]:
            lines += [f"pmapx: the last lines of process {rank}:"]
            lines += [f"  {line}" for line in self._last_lines[rank]]
        print("\n".join(lines), file=sys.stderr, flush=True)
        return status if status > 0 else 128 - status


def first_to_fail(
    ended: Mapping[int, tuple[int, float]], reported: Mapping[int, failure_record.Failure]
) -> int | None:
    """Returns the process whose failure caused those of the others, or None.

    ``ended`` has the exit status of each process, and the time it ended.
    """
    failed = [(at, rank) for rank, (status, at) in ended.items() if status and rank not in reported]
    causes = {failure.cause for failure in reported.values() if failure.cause is not None}
    causes &= {*reported, *(rank for _, rank in failed)}
    if len(causes) == 1:
        return causes.pop()
    # JAX aborts the processes that lose a peer.
    killed = [
        (at - _KILLED_FIRST, rank) for at, rank in failed if ended[rank][0] != -signal.SIGABRT
    ]
    own_reports = [(failure.seconds, rank) for rank, failure in reported.items()]
    candidates = [*(killed if own_reports else failed), *own_reports] or failed
    return min(candidates)[1] if candidates else None


# The end of a killed process is observed this many seconds later than by its peers.
_KILLED_FIRST = 0.5

_FAILED = "pmapx: process {rank} failed first, with {how}; the others were stopped."


def failed_first(output: str) -> tuple[int, str] | None:
    """Returns which process failed first, and how, from the output of a launch.

    >>> failed_first("pmapx: process 1 failed first, with exit status 3; the others were stopped.")
    (1, 'exit status 3')
    """
    pattern = re.escape(_FAILED).replace(r"\{rank\}", r"(\d+)").replace(r"\{how\}", "(.*?)")
    found = re.findall(f"^{pattern}$", output, re.MULTILINE)
    return (int(found[-1][0]), found[-1][1]) if found else None


def _end_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends, for whatever reason (Linux)."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL))


def _is_stopped(pid: int) -> bool:
    """Whether a process is suspended by a signal; False if unknown."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] == b"T"
    return False


def _prefix(rank: int, n: int, target: IO[str]) -> str:
    text = f"[{rank:>{len(str(n - 1))}}] "
    wants_color = "NO_COLOR" not in os.environ and (target.isatty() or "FORCE_COLOR" in os.environ)
    return f"\x1b[{COLORS[rank % len(COLORS)]}m{text}\x1b[0m" if wants_color else text


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
