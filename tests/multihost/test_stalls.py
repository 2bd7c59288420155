"""Processes that wait for each other say where (I9), and one that is stopped is named."""

import os
import re
import signal

import pytest
from launched import Launch, until
from started import HERE, finish, start

ODD_ONE_OUT = """
import jax, numpy as np, pmapx
jax.distributed.initialize()
def train(x):
    return jax.lax.psum(x, "i")
def evaluate(x):
    return jax.lax.psum(jax.lax.psum(x, "i") + 1, "i")
train, evaluate = jax.pmap(train, "i"), jax.pmap(evaluate, "i")
x = np.ones((jax.local_device_count(), 2))
def main():
    for k in range(3):
        jax.block_until_ready(train(x))
    pmapx.barrier("trained")
    if jax.process_index() == 1:
        jax.block_until_ready(evaluate(x))  # The odd one out.
    else:
        jax.block_until_ready(train(x))
    pmapx.barrier("epoch", timeout=600)
main()
"""


@pytest.mark.behaviour("I9")
def test_every_process_reports_where_it_waits_so_that_the_odd_one_is_seen(tmp_path):
    with Launch(tmp_path, ODD_ONE_OUT, "--stall-report", "3") as launched:
        table = r"(?s)no progress for 3 s.*process 0 has waited.*process 1 has waited.*\n"
        until(
            lambda: re.search(table, launched.log(0)) and "process 1 has waited" in launched.log(1),
            lambda: launched.err,
        )
        for log in (launched.log(0), launched.log(1)):
            (line, *_) = [line for line in log.splitlines() if "process 1 has waited" in line]
            assert "in main: jax.block_until_ready(evaluate(x))  # The odd one out." in line
            assert re.search(r"program\.py:\d+ ", line)
            assert re.search(r"last pmapped calls: .*evaluate \(call 1\)", line)
        (line, *_) = [line for line in launched.log(0).splitlines() if "process 0 has" in line]
        assert 'in main: pmapx.barrier("epoch", timeout=600)' in line
        assert re.search(r"last pmapped calls: .*train \(call 4\)", line)
        assert launched.process.poll() is None  # It is a report: nothing is ended.


@pytest.mark.behaviour("I9")
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs Linux")
def test_the_launcher_names_a_process_that_is_stopped(tmp_path):
    program = """
import os, time
open(f"pid.{os.environ['OMPI_COMM_WORLD_RANK']}", "w").write(str(os.getpid()))
while not os.path.exists("go on"):
    time.sleep(0.1)
"""
    with Launch(tmp_path, program) as launched:
        until(lambda: (tmp_path / "pid.1").exists() and (tmp_path / "pid.1").read_text(), str)
        pid = int((tmp_path / "pid.1").read_text())
        os.kill(pid, signal.SIGSTOP)
        until(lambda: "pmapx: process 1 is stopped" in launched.err, lambda: launched.err)
        assert f"kill -CONT {pid}" in launched.err
        os.kill(pid, signal.SIGCONT)
        (tmp_path / "go on").write_text("")
        assert launched.wait() == 0, launched.err
        assert launched.err.count("is stopped") == 1


ASKING = """
from pmapx._src.distributed import stall_report as stalls
initialize = stalls.Watch.__init__
def without_a_pause(self, *args):
    initialize(self, *args)
    self._interval = 0.0002
stalls.Watch.__init__ = without_a_pause
import jax
jax.distributed.initialize()
jax.devices()
"""


@pytest.mark.slow
def test_a_process_that_ends_while_its_watch_asks_the_service_ends_well(tmp_path):
    for k in range(3):
        launched = Launch(tmp_path / str(k), ASKING)

        assert launched.wait() == 0, launched.err


@pytest.mark.slow
@pytest.mark.behaviour("I9")
@pytest.mark.parametrize("lost", [0, 1])
def test_a_stopped_process_is_named_by_its_peers_within_the_heartbeat_time(tmp_path, lost):
    command = [str(HERE / "fault_worker.py"), "stopped"]
    started = start(command, 3, 1, tmp_path, PMAPX_TEST_LOST=str(lost))
    named = f"pmapx: process {lost} has not answered for"
    peers = [k for k in range(3) if k != lost] if lost == 0 else [0]
    try:
        outputs = lambda: [(tmp_path / f"output.{k}").read_text(errors="replace") for k in range(3)]
        until(lambda: all(named in outputs()[k] for k in peers), lambda: "\n".join(outputs()))
    finally:
        finish(started, 0.1)
