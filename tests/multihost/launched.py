"""`pmapx run -n`, started for a test. What each process prints is read from its own log."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pmapx
from virtual_devices import xla_flags

SOURCES = str(Path(pmapx.__file__).parents[1])


def environment(**more):
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("XLA_", "JAX_", "OMPI_", "PMAPX_RUN", "PMAPX_STALL"))
    }
    return {**kept, "PYTHONPATH": SOURCES, "XLA_FLAGS": xla_flags(), **more}


class Launch:
    """A launch whose output goes to files: `err` is the launcher's, `log(k)` that of process k."""

    def __init__(self, directory, program, *options, n=2, devices=1, args=(), **more):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.n = directory, n
        (directory / "program.py").write_text(program)
        command = [sys.executable, "-m", "pmapx", "run", "-n", str(n), "--devices", str(devices)]
        command += ["--logs", "logs", *options, "program.py", *args]
        with open(directory / "out", "wb") as out, open(directory / "err", "wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment(**more),
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @property
    def err(self):
        return (self.directory / "err").read_text(errors="replace")

    def log(self, rank):
        file = self.directory / "logs" / f"process-{rank}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def wait(self, timeout=120):
        """The exit status; what still runs after `timeout` seconds is stopped."""
        with self, contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout)
        raise AssertionError(f"it never ended\n{self.err[-3000:]}")


def until(is_true, what, timeout=120):
    """Wait until a condition holds; `what` gives the text for when it never does."""
    deadline = time.monotonic() + timeout
    while not is_true():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)
