"""The launcher: n processes of an unchanged program as one command, with real processes."""

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

from pmapx._src.distributed import launcher
from virtual_devices import xla_flags

SOURCES = str(Path(launcher.__file__).parents[1])
EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster" / "train.py"

# What a program for many hosts looks like: nothing in it knows of pmapx's launcher.
PROGRAM = """
import jax, numpy as np
jax.distributed.initialize()
import pmapx
total = pmapx.pmap(lambda x: jax.lax.psum(x, "i"), "i")(np.ones(jax.local_device_count()))
found = ["process", jax.process_index(), "of", jax.process_count(), "total", float(total[0])]
with open(f"found.{jax.process_index()}", "w") as file:
    print(*found, file=file)
"""
# Each process tells its id in a file of its own, once it is all there.
TELL_PID = """
import os
rank = os.environ["OMPI_COMM_WORLD_RANK"]
with open(f"unfinished.{rank}", "w") as file:
    print(os.getpid(), file=file)
os.rename(f"unfinished.{rank}", f"pid.{rank}")
"""


def command(n, devices, argv, **options):
    """A launcher in a process of its own, as the command line is."""
    code = (
        "import sys\nfrom pmapx._src.distributed.launcher import launch\n"
        f"sys.exit(launch({n}, {devices}, {list(argv)!r}, **{options!r}))"
    )
    return [sys.executable, "-c", code]


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_", "OMPI_"))}
    return {**kept, "PYTHONPATH": SOURCES, "XLA_FLAGS": xla_flags(), **more}


def run(n, devices, code, timeout=120, cwd=None, **options):
    done = subprocess.run(
        command(n, devices, [sys.executable, "-c", code], **options),
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return done


def started(n, devices, code, cwd, **options):
    return subprocess.Popen(
        command(n, devices, [sys.executable, "-c", code], **options),
        cwd=cwd,
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


def assert_all_end(pids, seconds=60):
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, f"left behind: {[p for p in pids if is_running(p)]}"
        time.sleep(0.05)


def pids_from(folder, n, process):
    """The ids of n processes that run TELL_PID in a folder."""
    files = [folder / f"pid.{rank}" for rank in range(n)]
    deadline = time.monotonic() + 120
    while not all(file.exists() for file in files):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "they never started"
        time.sleep(0.05)
    return [int(file.read_text()) for file in files]


ENDLESS = (
    """
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
with open(f"child.{child.pid}", "w"):
    pass
"""
    + TELL_PID
    + "time.sleep(600)"
)


@pytest.mark.behaviour("E1")
def test_an_unchanged_program_runs_in_four_processes_of_two_devices(tmp_path):
    done = run(4, 2, PROGRAM, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    for rank in range(4):
        assert (tmp_path / f"found.{rank}").read_text() == f"process {rank} of 4 total 8.0\n"


def assert_trained_alike(folder, processes):
    """Checks the file of each process of the example: they end with the same weights."""
    found = set()
    for rank in range(processes):
        text = (folder / f"out.{rank}").read_text()
        line = rf"process {rank} of {processes}, .* error (\S+), weights (\S+)\n"
        error, weights = re.fullmatch(line, text).groups()
        assert float(error) < 1e-3
        found.add(weights)
    assert len(found) == 1


TRAINING = [sys.executable, str(Path(__file__).parent / "own_output.py"), str(EXAMPLE)]
TRAINING += ["--steps", "60"]


@pytest.mark.slow
def test_the_example_for_clusters_runs_unchanged(tmp_path):
    done = subprocess.run(
        command(4, 2, TRAINING),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert_trained_alike(tmp_path, 4)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_the_example_for_clusters_runs_under_mpirun(tmp_path):
    flags = ["--allow-run-as-root", "--oversubscribe"]
    done = subprocess.run(
        ["mpirun", "-n", "4", *flags, *TRAINING],
        cwd=tmp_path,
        env=environment(
            JAX_PLATFORMS="cpu",
            JAX_CPU_COLLECTIVES_IMPLEMENTATION="gloo",
            XLA_FLAGS=xla_flags(2),
        ),
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert_trained_alike(tmp_path, 4)


@pytest.mark.slow
def test_two_launches_at_once_do_not_collide(tmp_path):
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    both = [started(2, 1, PROGRAM, folder) for folder in folders]

    for process, folder in zip(both, folders, strict=True):
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        for rank in range(2):
            assert (folder / f"found.{rank}").read_text() == f"process {rank} of 2 total 2.0\n"


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
def test_the_coordinator_and_the_collectives_listen_on_loopback_only(tmp_path):
    process = started(2, 1, f"{PROGRAM}{TELL_PID}import time; time.sleep(60)", tmp_path)
    try:
        pids = pids_from(tmp_path, 2, process)
        addresses = listening_addresses([*pids, process.pid])
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


def test_each_process_has_a_log_of_its_own_beside_the_prefixed_output(tmp_path):
    code = (
        "import os, sys\nrank = os.environ['OMPI_COMM_WORLD_RANK']\n"
        "for k in range(50): print(rank, k)\nprint('err', rank, file=sys.stderr)"
    )
    logs = tmp_path / "new" / "logs"
    for _ in range(2):  # A second launch writes them anew.
        done = run(11, None, code, logs=str(logs))

    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in logs.iterdir()) == [
        f"process-{rank:02}.log" for rank in range(11)
    ]
    for rank in range(11):
        lines = (logs / f"process-{rank:02}.log").read_text().splitlines()
        assert [line for line in lines if "err" not in line] == [f"{rank} {k}" for k in range(50)]
        assert f"err {rank}" in lines
        assert f"[{rank:>2}] {rank} 49" in done.stdout


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
    done = run(3, None, code)

    assert done.returncode == 7
    assert "process 1 failed first, with exit status 7" in done.stderr
    tail = done.stderr[done.stderr.index("the last lines of process 1") :]
    assert "about to fail" in tail
    assert "the reason" in tail


def test_processes_that_ignore_the_request_to_stop_are_killed(tmp_path):
    code = f"""
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{TELL_PID}
if rank == "0":
    while not os.path.exists("pid.1"):
        time.sleep(0.05)
    sys.exit(3)
time.sleep(600)
"""
    process = started(2, None, code, tmp_path, grace=1.0)
    _, err = process.communicate(timeout=120)

    assert process.returncode == 3, err
    assert_all_end([int((tmp_path / f"pid.{rank}").read_text()) for rank in range(2)])


def test_a_worker_killed_outright_is_named_and_nothing_is_left(tmp_path):
    process = started(3, None, ENDLESS, tmp_path, grace=1.0)
    pids = pids_from(tmp_path, 3, process)
    os.kill(pids[2], signal.SIGKILL)
    _, err = process.communicate(timeout=120)

    assert process.returncode == 128 + signal.SIGKILL
    assert "process 2 failed first, with signal SIGKILL" in err
    children = [int(file.suffix[1:]) for file in tmp_path.glob("child.*")]
    assert len(children) == 3
    assert_all_end([*pids, *children])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on_and_nothing_is_left(number, tmp_path):
    code = f"""
import os, signal, sys, time
def note(number, frame):
    open(f"got.{{signal.Signals(number).name}}.{{rank}}", "w").close()
    sys.exit(0)
signal.signal(signal.SIGINT, note)
signal.signal(signal.SIGTERM, note)
{TELL_PID}
time.sleep(600)
"""
    process = started(2, None, code, tmp_path, grace=60.0)
    pids = pids_from(tmp_path, 2, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)

    assert process.returncode == 128 + number
    assert f"stopped by {number.name}" in err
    assert sorted(file.name for file in tmp_path.glob("got.*")) == [
        f"got.{number.name}.0", f"got.{number.name}.1"
    ]  # fmt: skip
    assert_all_end(pids)


def test_the_launcher_killed_outright_leaves_no_worker(tmp_path):
    process = started(2, None, f"{TELL_PID}import time; time.sleep(600)", tmp_path)
    pids = pids_from(tmp_path, 2, process)
    process.kill()
    process.communicate(timeout=120)

    assert_all_end(pids)


def test_a_program_that_cannot_start_is_an_error():
    done = subprocess.run(
        command(2, None, ["/no/such/program"]), env=environment(), capture_output=True, text=True
    )

    assert done.returncode != 0
    assert "/no/such/program" in done.stderr


def test_a_reserved_port_is_not_assigned_twice():
    with launcher.reserved_port() as first, launcher.reserved_port() as second:
        assert first != second


def test_virtual_devices_replace_those_asked_for_before():
    before = {"XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=8 --b"}
    chosen = launcher.environment(before, 1, 4, 5000, 2)

    assert chosen["XLA_FLAGS"].split() == [
        "--a=1", "--b", "--xla_force_host_platform_device_count=2"
    ]  # fmt: skip
    assert chosen["JAX_COORDINATOR_ADDRESS"] == "127.0.0.1:5000"
    assert launcher.environment({}, 0, 1, 5000, None).get("JAX_PLATFORMS") is None
