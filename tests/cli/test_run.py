"""`pmapx run`: unmodified programs, their exit status and signals."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pmapx

pytest.importorskip("click", reason="needs pmapx[tools]")

PROGRAM = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
from jax import pmap

n = jax.local_device_count()
params = jax.device_put_replicated({"w": jnp.ones(2)}, jax.local_devices())
out = pmap(lambda p, x: jax.lax.psum(p["w"] * x, "i"), axis_name="i")(params, np.arange(float(n)))
print(n, float(out[0][1]), len(out[0].devices()), __name__, sys.argv[1:])
"""


@pytest.fixture
def pmapx_run(tmp_path):
    package_root = str(Path(pmapx.__file__).parents[1])

    def start(*args, program=PROGRAM, **more):
        (tmp_path / "train.py").write_text(program)
        return subprocess.Popen(
            [sys.executable, "-m", "pmapx", "run", *args],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": package_root, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # What runs in the background of a shell ignores it, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return start


def finished(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_an_old_program_runs_unchanged_with_its_arguments(pmapx_run):
    code, out, err = finished(pmapx_run("--devices", "4", "train.py", "--devices", "9", "-m"))

    assert (code, err) == (0, "")
    assert out == "4 6.0 1 __main__ ['--devices', '9', '-m']\n"


def test_a_module_is_run_as_python_does(pmapx_run, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "__main__.py").write_text(PROGRAM)

    code, out, err = finished(pmapx_run("--devices", "2", "-m", "package", "a"))

    assert (code, err) == (0, "")
    assert out == "2 1.0 1 __main__ ['a']\n"


def test_oversubscribe_maps_more_elements_than_devices(pmapx_run):
    program = "import jax, numpy as np; print(jax.pmap(lambda x: x + 1)(np.arange(6)).sum())"

    refused = finished(pmapx_run("--devices", "2", "train.py", program=program))
    allowed = finished(pmapx_run("--devices", "2", "--oversubscribe", "train.py", program=program))

    assert refused[0] == 1
    assert "PMX201" in refused[2]
    assert allowed[:2] == (0, "21\n")


def test_verbose_lists_the_replaced_names(pmapx_run):
    code, _, err = finished(pmapx_run("-v", "train.py", program=""))

    assert code == 0
    assert "jax.device_put_replicated" in err


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("raise SystemExit(7)", 7),
        ("1 / 0", 1),
        ("def", 1),
        pytest.param("import sys; sys.exit('no')", 1, marks=pytest.mark.slow),
    ],
)
def test_the_exit_status_is_the_programs(pmapx_run, program, status):
    code, _, err = finished(pmapx_run("train.py", program=program))

    assert code == status
    assert "bootstrap" not in err
    assert "click" not in err


def test_the_main_module_is_the_program(pmapx_run):
    program = """
import pickle, sys
class Config:
    x = 3
assert pickle.loads(pickle.dumps(Config())).x == 3
assert sys.modules["__main__"].Config is Config
import atexit
atexit.register(lambda: print(Config.x))
"""
    assert finished(pmapx_run("train.py", program=program)) == (0, "3\n", "")


@pytest.mark.parametrize(
    "sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_signals_reach_the_program(pmapx_run, sent):
    program = "import time; print('ready', flush=True); time.sleep(100)"
    process = pmapx_run("train.py", program=program)
    assert process.stdout.readline() == "ready\n"

    process.send_signal(sent)
    code, _, _ = finished(process)

    assert code == -sent


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("nothing.py",), "no such file: 'nothing.py'"),
        (("brax.training",), "pmapx run -m"),
        (("--devices", "0", "train.py"), "0"),
        (("--logs", "logs", "train.py"), "--logs and --stall-report need -n"),
        (("-n", "2", "--stall-report", "-1", "train.py"), "-1"),
        ((), "PROGRAM"),
    ],
)
def test_a_usage_error_has_a_hint_and_exits_with_2(pmapx_run, args, says):
    code, out, err = finished(pmapx_run(*args))

    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


def test_a_missing_module_is_an_error_in_one_line(pmapx_run):
    code, _, err = finished(pmapx_run("-m", "no_such.module"))

    assert code == 1
    assert err.startswith("pmapx: cannot run 'no_such.module': ")
    assert err.count("\n") == 1


MANY = """
import sys
import jax
import numpy as np
jax.distributed.initialize()
state = jax.device_put_replicated(1.0, jax.local_devices())
out = jax.pmap(lambda s, x: jax.lax.psum(s * x, "i"), axis_name="i")(
    state, np.arange(2.0) + 2 * jax.process_index()
)
with open(f"found.{jax.process_index()}", "w") as file:
    print(jax.device_count(), float(out[0]), file=file)
if sys.argv[1:] == [str(jax.process_index())]:
    raise RuntimeError("a fault of its own")
"""


@pytest.mark.slow
def test_several_processes_of_an_unchanged_program_find_each_other(pmapx_run, tmp_path):
    options = ("-n", "2", "--devices", "2", "--logs", "logs", "--stall-report", "0")
    code, out, err = finished(pmapx_run(*options, "train.py", program=MANY))

    assert code == 0, err
    assert [(tmp_path / f"found.{rank}").read_text() for rank in (0, 1)] == ["4 6.0\n"] * 2
    assert {line[:3] for line in out.splitlines()} == {"[0]", "[1]"}
    assert sorted(file.name for file in (tmp_path / "logs").iterdir()) == [
        "process-0.log", "process-1.log"
    ]  # fmt: skip


@pytest.mark.slow
def test_the_process_that_failed_first_is_named_and_all_are_stopped(pmapx_run):
    code, _, err = finished(pmapx_run("-n", "2", "--devices", "2", "train.py", "1", program=MANY))

    assert code == 1
    assert "process 1 failed first" in err
    assert "a fault of its own" in err


LISTENING = """
import os
links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
files = [os.readlink(link) for link in links if os.path.exists(link)]
inodes = {file[8:-1] for file in files if file.startswith("socket:")}
for table in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{table}").readlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            print(fields[1].split(":")[0], file=open(f"listens.{jax.process_index()}", "a"))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_what_a_launch_opens_listens_on_loopback_only(pmapx_run, tmp_path):
    program = MANY + LISTENING

    code, _, err = finished(pmapx_run("-n", "2", "--devices", "2", "train.py", program=program))

    assert code == 0, err
    files = list(tmp_path.glob("listens.*"))
    addresses = {line for file in files for line in file.read_text().split()}
    assert len(files) == 2
    v4, v6 = "0100007F", "0000000000000000FFFF00000100007F"
    assert addresses
    assert addresses <= {v4, v6}


def test_python_may_be_named_before_the_program(pmapx_run):
    process = pmapx_run("--devices", "2", "--", "python", "train.py", "-x")
    assert finished(process) == (0, "2 1.0 1 __main__ ['-x']\n", "")


def test_a_notebook_runs_its_cells_with_what_is_timed_and_without_other_magics(pmapx_run, tmp_path):
    cells = [
        "%matplotlib inline\nimport sys, jax, jax.numpy as jnp\n",
        "w = jax.device_put_replicated(1.0, jax.local_devices())\n!ls\n",
        "%time w = jax.pmap(lambda w: 2 * w)(w)\nprint(w[0], sys.argv[1:], __name__)",
    ]
    content = {"cells": [{"cell_type": "code", "source": cell} for cell in cells]}
    (tmp_path / "train.ipynb").write_text(json.dumps(content))
    out, err = pmapx_run("--devices", "2", "train.ipynb", "--small").communicate()
    assert out == "2.0 ['--small'] __main__\n", err


def test_python_without_a_program_is_one_line(pmapx_run):
    code, _, err = finished(pmapx_run("--", sys.executable, "-c", "print()"))
    assert code == 2
    assert "pass a file or -m and a module after python" in err


FAILING = """
import sys, jax, numpy as np

def body(x):
    raise RuntimeError("in the body")

def main(how):
    n = jax.local_device_count()
    if how == "body":
        jax.pmap(body)(np.ones(n))
    elif how == "arguments":
        jax.pmap(lambda x, y: x)(np.ones(n), np.ones(n + 1))
    elif how == "arrays":
        jax.device_put_sharded([1] * (n + 1), jax.devices())
    elif how == "cause":
        try:
            jax.pmap(body)(np.ones(n))
        except RuntimeError as error:
            raise ValueError("outside") from error

main(sys.argv[1])
"""


@pytest.mark.parametrize(
    "how",
    [
        "body",
        "arguments",
        pytest.param("arrays", marks=pytest.mark.slow),
        pytest.param("cause", marks=pytest.mark.slow),
    ],
)
def test_a_traceback_has_the_users_frames_and_none_of_pmapx(pmapx_run, how):
    process = pmapx_run("train.py", how, program=FAILING, PMAPX_TRACEBACK="")
    err = finished(process)[2]
    assert 'File "train.py", line' in err
    assert str(Path(pmapx.__file__).parent) not in err
    assert "runpy" not in err


@pytest.mark.slow
def test_frames_of_pmapx_are_shown_on_request(pmapx_run):
    process = pmapx_run("train.py", "arguments", program=FAILING, PMAPX_TRACEBACK="1")
    assert str(Path(pmapx.__file__).parent) in finished(process)[2]
