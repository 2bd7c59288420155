"""Real processes on loopback, each with virtual devices of its own: started, and ended."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from virtual_devices import xla_flags

HERE = Path(__file__).parent
SOURCES = str(Path(__import__("pmapx").__file__).parents[1])


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def environment(processes, index, port, devices, **more):
    """What process `index` of a launch finds in its environment."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_", "OMPI_"))}
    return {
        **kept,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": xla_flags(devices),
        "PYTHONPATH": os.pathsep.join([SOURCES, str(HERE), str(HERE.parent / "support")]),
        "PMAPX_TEST_PROCESSES": str(processes),
        "PMAPX_TEST_PROCESS": str(index),
        "PMAPX_TEST_COORDINATOR": f"127.0.0.1:{port}",
        **more,
    }


def start(command, processes, devices, directory, **more):
    """Start the processes; `devices` is a number, or one for each process."""
    port = free_port()
    each = [devices] * processes if isinstance(devices, int) else devices
    started = []
    for index in range(processes):
        with open(directory / f"output.{index}", "wb") as output:
            started.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    env=environment(processes, index, port, each[index], **more),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    return started


def finish(started, timeout):
    """Wait for all; what still runs at the end is killed. Gives the exit statuses."""
    deadline = time.monotonic() + timeout
    try:
        for process in started:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                break
        return [process.poll() for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run_cases(name, directory, processes=2, devices=2, timeout=240, **more):
    """Run the cases of a file in `processes` processes; gives each case's outcomes."""
    directory.mkdir(parents=True, exist_ok=True)
    started = start(
        [str(HERE / "worker.py"), name, str(directory)], processes, devices, directory, **more
    )
    statuses = finish(started, timeout)
    outcomes = {}
    for index in range(processes):
        report = directory / f"cases.{index}"
        for line in report.read_text().splitlines() if report.exists() else []:
            case, error = json.loads(line)
            outcomes.setdefault(case, {})[index] = error
    tails = {
        index: (directory / f"output.{index}").read_text(errors="replace")[-3000:]
        for index in range(processes)
    }
    return {"cases": outcomes, "statuses": statuses, "tails": tails}
