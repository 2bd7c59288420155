"""One process fails: all end in seconds, and that process and its exception are named (I8)."""

import shutil
import signal
import subprocess
import sys

import pytest
from launched import Launch, environment
from test_faults import outcome

from pmapx._src.distributed import failure_record, launcher
from pmapx._src.distributed.failure_record import Failure

FAILING = """
import atexit, sys
import jax, numpy as np
jax.distributed.initialize()
step = jax.pmap(lambda x: jax.lax.psum(x, "i"), "i")
atexit.register(lambda: open(f"atexit.{jax.process_index()}", "w"))
how, process = sys.argv[1:]
for k in range(10**6):
    if k == 3 and jax.process_index() == int(process):
        if how == "exit":
            sys.exit(3)
        raise RuntimeError("a fault of its own")
    jax.block_until_ready(step(np.ones(jax.local_device_count())))
"""


@pytest.mark.behaviour("I8")
@pytest.mark.parametrize(
    ("how", "process"),
    [
        ("raise", 1),
        pytest.param("exit", 0, marks=pytest.mark.slow),
        pytest.param("raise", 0, marks=pytest.mark.slow),
        pytest.param("exit", 1, marks=pytest.mark.slow),
    ],
)
def test_a_failing_process_is_named_with_its_exception_and_its_traceback_comes_last(
    tmp_path, how, process
):
    launched = Launch(tmp_path, FAILING, args=(how, str(process)))

    # JAX alone waits for 300 s.
    status = launched.wait(timeout=90)

    exception = "SystemExit: 3" if how == "exit" else "RuntimeError: a fault of its own"
    assert status == (3 if how == "exit" else 1)
    lines = launched.err.splitlines()
    assert lines[-1] == exception
    how_first = f"process {process} failed first, with exit status {status}"
    told = f"pmapx: {how_first}; the others were stopped."
    assert told in lines
    last_traceback = "\n".join(lines[lines.index(told) :])
    assert f"pmapx: the traceback of process {process}:" in last_traceback
    assert 'program.py", line' in last_traceback
    assert "bootstrap" not in last_traceback
    assert f"process {1 - process} was lost" not in launched.err
    assert f"pmapx: process {process} failed: {exception}" in launched.log(1 - process)
    assert (tmp_path / f"atexit.{process}").exists()


@pytest.mark.slow
@pytest.mark.behaviour("I8")
def test_a_failing_process_ends_at_once_with_public_jax_only(tmp_path):
    plain = {"PMAPX_PUBLIC_ONLY": "1", "PMAPX_RUN_PLAIN": "1"}
    program = FAILING.replace("jax.pmap(", "__import__('pmapx').pmap(")
    launched = Launch(tmp_path, program, args=("raise", "1"), **plain)

    assert launched.wait(timeout=90) == 1
    assert "process 1 failed first, with exit status 1" in launched.err
    assert launched.err.splitlines()[-1] == "RuntimeError: a fault of its own"
    assert (tmp_path / "atexit.1").exists()


@pytest.mark.behaviour("I8")
def test_a_failure_before_the_processes_join_stops_the_others_too(tmp_path):
    program = """
import os, jax
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    raise RuntimeError("no data")
jax.distributed.initialize()
"""
    launched = Launch(tmp_path, program)

    assert launched.wait(timeout=90) == 1
    assert "process 1 failed first, with exit status 1" in launched.err
    assert launched.err.splitlines()[-1] == "RuntimeError: no data"


@pytest.mark.behaviour("I8")
@pytest.mark.parametrize(
    ("fault", "lost"),
    [
        ("raises", 1),
        pytest.param("raises", 0, marks=pytest.mark.slow),
        pytest.param("raises_elsewhere", 1, marks=pytest.mark.slow),
        pytest.param("raises_elsewhere", 0, marks=pytest.mark.slow),
    ],
)
def test_without_a_launcher_peers_name_the_process_that_failed_and_end(tmp_path, fault, lost):
    statuses, outputs = outcome(tmp_path, fault, PMAPX_TEST_LOST=str(lost))

    assert statuses[lost] == 1, outputs[lost]
    assert "RuntimeError: a fault of its own" in outputs[lost]
    assert "was lost" not in outputs[lost]
    peer = 1 - lost
    assert statuses[peer] not in (0, None), outputs[peer]
    assert f"pmapx: process {lost} failed: RuntimeError: a fault of its own" in outputs[peer]


@pytest.mark.parametrize("fault", ["raises_in_a_thread", "excepthook_by_hand"])
@pytest.mark.slow
def test_an_exception_that_does_not_end_the_program_ends_no_process(tmp_path, fault):
    statuses, outputs = outcome(tmp_path, fault)

    assert statuses == [0, 0], outputs
    assert all("ZeroDivisionError" in text for text in outputs)
    assert not any("pmapx:" in text for text in outputs)


@pytest.mark.slow
@pytest.mark.behaviour("I8")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
@pytest.mark.parametrize(("how", "status"), [("raise", 1), ("exit", 3)])
def test_under_mpirun_a_failing_process_ends_all_with_its_status(tmp_path, how, status):
    (tmp_path / "program.py").write_text(FAILING)
    program = [sys.executable, "-m", "pmapx", "run", "program.py", how, "1"]
    files = ["--output-filename", str(tmp_path / "logs")]
    done = subprocess.run(
        ["mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe", *files, *program],
        cwd=tmp_path,
        env=environment(JAX_PLATFORMS="cpu", JAX_CPU_COLLECTIVES_IMPLEMENTATION="gloo"),
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == status, done.stderr
    (of_failed,) = tmp_path.glob("logs*/*/rank.1")
    shown = "".join(file.read_text() for file in of_failed.iterdir())
    assert "a fault of its own" in shown or how == "exit"
    assert (tmp_path / "atexit.1").exists()


def failure(process, seconds, cause=None):
    return Failure(process, 1, "ValueError: x", "trace", seconds, cause)


@pytest.mark.parametrize(
    ("ended", "reported", "first"),
    [
        ({0: (0, 5.0), 1: (0, 5.0)}, {}, None),
        ({0: (1, 5.0), 1: (2, 4.0)}, {}, 1),
        # Both reported: the earlier one, whichever was seen to end first.
        ({0: (1, 5.0), 1: (1, 6.0)}, {0: failure(0, 4.0), 1: failure(1, 3.0)}, 1),
        # One that knows its cause, though it was seen first.
        ({0: (1, 5.0), 1: (-9, 6.0)}, {0: failure(0, 4.0, cause=1)}, 1),
        # Killed: the peer's collective may fail before the launcher sees the end.
        ({0: (1, 5.2), 1: (-9, 5.0)}, {0: failure(0, 4.9)}, 1),
        # JAX aborts those whom process 0 leaves.
        ({0: (1, 5.2), 1: (-signal.SIGABRT, 5.0)}, {0: failure(0, 5.1)}, 0),
        # A cause that ended well is none.
        ({0: (1, 5.2), 1: (0, 5.0)}, {0: failure(0, 5.1, cause=1)}, 0),
    ],
)
def test_the_first_to_fail_is_the_cause_not_the_first_that_was_seen(ended, reported, first):
    assert launcher.first_to_fail(ended, reported) == first


def test_a_failure_survives_the_way_through_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv(failure_record.FILE, str(tmp_path / "1.json"))
    try:
        raise ValueError("several\nlines")
    except ValueError as error:
        made = failure_record.of_exception(1, error, error.__traceback__)
    failure_record.write_for_launcher(made)
    failure_record.write_for_launcher(failure(1, 0.0))  # The first one stays.

    assert failure_record.read({1: str(tmp_path / "1.json"), 2: str(tmp_path / "2.json")}) == {
        1: made
    }
    assert made.summary == "ValueError: several"
    assert made.trace.endswith("ValueError: several\nlines")
