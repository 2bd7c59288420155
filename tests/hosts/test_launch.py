"""`pmapx.launch`: n processes of an unchanged program as one command, with real processes."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pmapx import launch

SOURCES = str(Path(launch.__file__).parents[1])
EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster" / "train.py"

# What a program for many hosts looks like: nothing in it knows of pmapx's launcher.
PROGRAM = """
import jax, numpy as np
jax.distributed.initialize()
import pmapx
total = pmapx.pmap(lambda x: jax.lax.psum(x, "i"), "i")(np.ones(jax.local_device_count()))
print("process", jax.process_index(), "of", jax.process_count(), "total", float(total[0]))
"""


def command(n, devices, argv, **options):
    """A launcher in a process of its own, as the command line is."""
    code = (
        "import sys\nfrom pmapx.launch import launch\n"
        f"sys.exit(launch({n}, {devices}, {list(argv)!r}, **{options!r}))"
    )
    return [sys.executable, "-c", code]


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_", "OMPI_"))}
    return {**kept, "PYTHONPATH": SOURCES, **more}


def run(n, devices, code, timeout=120, **options):
    done = subprocess.run(
        command(n, devices, [sys.executable, "-c", code], **options),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return done


def started(n, devices, code, **options):
    return subprocess.Popen(
        command(n, devices, [sys.executable, "-c", code], **options),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_all_end(pids, seconds=10):
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, f"left behind: {[p for p in pids if is_running(p)]}"
        time.sleep(0.05)


def pids_from(process, n):
    """The ids that n processes print as they start."""
    found = {}
    while len(found) < n:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        if match := re.match(r"\[(\d+)\] pid (\d+)", line):
            found[int(match[1])] = int(match[2])
    return found


ENDLESS = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
print("pid", os.getpid(), flush=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.behaviour("E1")
def test_an_unchanged_program_runs_in_four_processes_of_two_devices():
    done = run(4, 2, PROGRAM)

    assert done.returncode == 0, done.stderr
    for rank in range(4):
        assert f"[{rank}] process {rank} of 4 total 8.0" in done.stdout


def weights_of(output, processes):
    """The weights that the processes of the example ended with, one for all."""
    ends = re.findall(rf"process (\d) of {processes}, .* error (\S+), weights (\S+)", output)
    assert sorted(process for process, _, _ in ends) == [str(k) for k in range(processes)]
    assert all(float(error) < 1e-3 for _, error, _ in ends)
    (weights,) = {weights for _, _, weights in ends}
    return float(weights)


def test_the_example_for_clusters_runs_unchanged():
    argv = [sys.executable, str(EXAMPLE), "--steps", "60"]
    done = subprocess.run(
        command(4, 2, argv), env=environment(), capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    weights_of(done.stdout, 4)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_the_example_for_clusters_runs_under_mpirun():
    flags = ["--allow-run-as-root", "--oversubscribe"]
    done = subprocess.run(
        ["mpirun", "-n", "4", *flags, sys.executable, str(EXAMPLE), "--steps", "60"],
        env=environment(
            JAX_PLATFORMS="cpu",
            JAX_CPU_COLLECTIVES_IMPLEMENTATION="gloo",
            XLA_FLAGS="--xla_force_host_platform_device_count=2",
        ),
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    weights_of(done.stdout, 4)


def test_two_launches_at_once_do_not_collide():
    both = [started(2, 1, PROGRAM) for _ in range(2)]

    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "[0] process 0 of 2 total 2.0" in out
        assert "[1] process 1 of 2 total 2.0" in out


def listening_addresses(pids):
    """The addresses on which these processes listen, in the kernel's hexadecimal."""
    sockets = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux")
def test_the_coordinator_and_the_collectives_listen_on_loopback_only():
    code = PROGRAM + "\nimport time; print('pid', __import__('os').getpid()); time.sleep(60)"
    process = started(2, 1, code)
    try:
        pids = pids_from(process, 2)
        addresses = listening_addresses([*pids.values(), process.pid])
        assert addresses
        # Each word of four bytes stands the other way round: 127.0.0.1, ::ffff:127.0.0.1, ::1.
        loopback = ("0100007F", "0000000000000000FFFF00000100007F", "0" * 24 + "01000000")
        assert set(addresses) <= set(loopback)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_output_streams_stay_apart_and_lines_stay_whole():
    code = (
        "import os, sys\nfor k in range(200): print('out' * 20, k)\nprint('err', file=sys.stderr)"
    )

    done = run(3, None, code)

    assert done.returncode == 0
    assert sorted(done.stderr.split("\n"))[1:] == ["[0] err", "[1] err", "[2] err"]
    for rank in range(3):
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert lines == [f"[{rank}] {'out' * 20} {k}" for k in range(200)]


def test_ranks_are_coloured_where_colour_is_wanted():
    argv = command(2, None, [sys.executable, "-c", "print('hello')"])
    wanted = subprocess.run(argv, env=environment(FORCE_COLOR="1"), capture_output=True, text=True)
    unwanted = subprocess.run(
        argv, env=environment(FORCE_COLOR="1", NO_COLOR="1"), capture_output=True, text=True
    )

    assert "\x1b[36m[0] \x1b[0mhello" in wanted.stdout
    assert "\x1b[33m[1] \x1b[0mhello" in wanted.stdout
    assert "\x1b" not in unwanted.stdout


def test_one_failure_stops_all_and_is_named_with_its_last_lines():
    code = """
import os, sys, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    print("about to fail")
    print("the reason", file=sys.stderr)
    sys.exit(7)
time.sleep(600)
"""
    begun = time.monotonic()
    done = run(3, None, code)

    assert done.returncode == 7
    assert time.monotonic() - begun < 20
    assert "process 1 failed first, with exit status 7" in done.stderr
    tail = done.stderr[done.stderr.index("the last lines of process 1") :]
    assert "about to fail" in tail
    assert "the reason" in tail


def test_processes_that_ignore_the_request_to_stop_are_killed():
    code = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("pid", os.getpid(), flush=True)
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    time.sleep(1)
    sys.exit(3)
time.sleep(600)
"""
    process = started(2, None, code, grace=1.0)
    pids = pids_from(process, 2)
    process.communicate(timeout=30)

    assert process.returncode == 3
    assert_all_end(pids.values())


def test_a_worker_killed_outright_is_named_and_nothing_is_left():
    process = started(3, None, ENDLESS, grace=1.0)
    pids = pids_from(process, 3)
    os.kill(pids[2], signal.SIGKILL)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 128 + signal.SIGKILL
    assert "process 2 failed first, with signal SIGKILL" in err
    children = [int(pid) for pid in re.findall(r"child (\d+)", out)]
    assert_all_end([*pids.values(), *children])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on_and_nothing_is_left(number):
    code = """
import os, signal, sys, time
def said(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(0)
signal.signal(signal.SIGINT, said)
signal.signal(signal.SIGTERM, said)
print("pid", os.getpid(), flush=True)
time.sleep(600)
"""
    process = started(2, None, code)
    pids = pids_from(process, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 128 + number
    assert f"stopped by {number.name}" in err
    assert f"[0] got {number.name}" in out
    assert f"[1] got {number.name}" in out
    assert_all_end(pids.values())


def test_the_launcher_killed_outright_leaves_no_worker():
    process = started(2, None, "import os, time; print('pid', os.getpid()); time.sleep(600)")
    pids = pids_from(process, 2)
    process.kill()
    process.communicate(timeout=30)

    assert_all_end(pids.values())


def test_a_program_that_cannot_start_is_an_error():
    done = subprocess.run(
        command(2, None, ["/no/such/program"]), env=environment(), capture_output=True, text=True
    )

    assert done.returncode != 0
    assert "/no/such/program" in done.stderr


def test_a_reserved_port_is_given_to_nobody_else():
    with launch.reserved_port() as first, launch.reserved_port() as second:
        assert first != second


def test_virtual_devices_replace_those_asked_for_before():
    before = {"XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=8 --b"}
    chosen = launch.environment(before, 1, 4, 5000, 2)

    assert chosen["XLA_FLAGS"].split() == [
        "--a=1", "--b", "--xla_force_host_platform_device_count=2"
    ]  # fmt: skip
    assert chosen["JAX_COORDINATOR_ADDRESS"] == "127.0.0.1:5000"
    assert launch.environment({}, 0, 1, 5000, None).get("JAX_PLATFORMS") is None
