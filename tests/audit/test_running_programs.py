"""pmapx audit -- COMMAND: the program runs as it is, and what it maps is audited."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pmapx
from pmapx._src import fastpath
from pmapx._src.audit.running.audited_calls import AuditedCalls
from virtual_devices import xla_flags

pytest.importorskip("click", reason="needs pmapx[tools]")

makes_devices = pytest.mark.skipif(
    fastpath.more_cpu_devices(1) is None, reason="CPU devices are made once"
)
TRAIN = """
import functools, os, sys
import jax, jax.numpy as jnp, numpy as np

@functools.partial(jax.pmap, axis_name="batch", donate_argnums=0)
def step(state, batch):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(state["w"])
    grads, loss = jax.lax.pmean((grads, loss), "batch")
    return {"w": state["w"] - 0.1 * grads, "step": state["step"] + 1}, loss

n = jax.device_count()
state = jax.device_put_replicated({"w": jnp.arange(8.0).reshape(4, 2), "step": 0}, jax.devices())
for i in range(5):
    batch = jax.device_put(np.arange(n * 12.0).reshape(n, 3, 4), jax.devices()[0])
    state, loss = step(state, batch)
    print("loss", i, loss[0].shape)
"""
SHARD_MAP = """
from jax.sharding import Mesh, PartitionSpec as P

@jax.jit
@functools.partial(jax.shard_map, mesh=Mesh(np.array(jax.devices()), "i"), in_specs=P("i"),
                   out_specs=P())
def total(x):
    return jax.lax.psum(x, "i")

class Model:
    @functools.partial(jax.jit, static_argnums=0)
    def plain(self, x):
        return x + 1

print(total(np.ones((n, 2))).shape, total(np.ones((2 * n, 2))).shape, Model().plain(1).shape)
"""


def audit(tmp_path, code, *options, devices=2, command=None):
    program = tmp_path / "train.py"
    program.write_text(code)
    report = tmp_path / "audit.json"
    command = command or [sys.executable, str(program)]
    home = str(Path(pmapx.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "pmapx", "audit", "--devices", str(devices), "--json", str(report)]
        + [*options, "--", *command],
        env={**os.environ, "PYTHONPATH": home, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()},
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    found = None
    if report.exists():
        found = pmapx.AuditReport.from_dict(json.loads(report.read_text()))
    return done, found


def run_audit(tmp_path, *arguments):
    home = str(Path(pmapx.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "pmapx", "audit", *arguments],
        env={**os.environ, "PYTHONPATH": home, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()},
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )


def codes(report):
    return {remark.code for remark in report.findings}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A program with a pmap, a shard_map and a plain jit, audited once for several tests."""
    folder = tmp_path_factory.mktemp("watched")
    page = folder / "audit.html"
    done, report = audit(
        folder, TRAIN + SHARD_MAP + "sys.exit(3)\n", "--html", str(page), devices=8
    )
    return done, report, page


def test_output_and_status_are_the_programs_own(watched):
    done, _, _ = watched

    assert done.returncode == 3
    lines = [f"loss {i} ()" for i in range(5)] + ["(1, 2) (2, 2) ()"]
    assert done.stdout.splitlines() == lines
    assert "step (train.py:5): pmapx.pmap on batch=8 (cpu)" in done.stderr


def test_each_mapped_function_is_there_once_a_signature(watched):
    _, report, _ = watched

    found = [(each.name, each.kind, each.arguments[-1].type) for each in report.functions]
    assert found == [
        ("step", "pmapx.pmap", "float32[8,3,4]"),
        ("total", "jit of shard_map", "float32[8,2]"),
        ("total", "jit of shard_map", "float32[16,2]"),
    ]


def test_a_method_with_a_static_self_is_left_out_and_nothing_is_skipped(watched):
    _, report, _ = watched

    assert report.skipped == ()


def test_calls_traces_and_moves_are_counted_over_the_run(watched):
    _, report, _ = watched
    step, total, _ = report.functions

    assert (step.history.calls, step.history.traces, step.history.compiles) == (5, 1, 1)
    ((path, count),) = [(move.path, move.count) for move in step.history.moved]
    assert (path, count) == ("batch", 5)
    assert (total.history.calls, total.history.compiles) == (2, 2)
    assert total.history.reasons[1] == "x was float32[8,2], is float32[16,2]"


def test_rows_taken_are_counted_by_line(watched):
    _, report, _ = watched

    (read,) = report.shard_reads
    line = 1 + TRAIN.splitlines().index('    print("loss", i, loss[0].shape)')
    assert read.place.endswith(f"train.py:{line}")
    assert (read.index, read.count, read.bytes) == ("0", 5, 5 * 4 * 7)


def test_findings_of_the_functions_and_of_the_run_are_told(watched):
    done, report, _ = watched

    assert {"PMX601", "PMX602", "PMX604", "PMX605"} <= codes(report)
    assert all(code in done.stderr for code in codes(report))


def test_values_are_compared_before_donation_deletes_them(watched):
    _, report, _ = watched

    state = {leaf.path: leaf for leaf in report.functions[0].arguments}["state['w']"]
    assert state.is_compared
    assert state.is_stacked_copies


def test_the_page_is_written(watched):
    _, _, page = watched

    assert page.read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.skipif(
    fastpath.more_cpu_devices(1) is None, reason="public JAX makes its CPU devices once"
)
def test_the_program_runs_here_and_is_compiled_for_a_topology(tmp_path):
    done, report = audit(tmp_path, TRAIN, "--topology", "cpu:4")

    assert (done.returncode, len(done.stdout.splitlines())) == (0, 5)
    (function,) = report.functions
    assert (report.topology, function.axis_sizes) == ("cpu:4", {"batch": 4})
    assert function.history.calls == 5


def test_an_unknown_topology_is_an_error_in_one_line(tmp_path):
    done, report = audit(tmp_path, TRAIN, "--topology", "v5e:3")

    assert (done.returncode, done.stdout, report) == (2, "", None)
    assert len(done.stderr.splitlines()) == 1
    assert "v5e:16x16" in done.stderr


def test_a_crash_leaves_the_report_of_what_was_met(tmp_path):
    done, report = audit(tmp_path, TRAIN + "raise RuntimeError('out of luck')\n")

    assert done.returncode == 1
    assert "out of luck" in done.stderr
    assert [each.name for each in report.functions] == ["step"]
    assert report.functions[0].history.calls == 5


@pytest.mark.slow
def test_a_program_that_is_killed_leaves_it_too(tmp_path):
    done, report = audit(tmp_path, TRAIN + "os.kill(os.getpid(), 9)\n")

    assert done.returncode == 128 + 9
    assert [each.name for each in report.functions] == ["step"]


def test_a_traceback_of_an_audited_program_has_no_frame_of_pmapx(tmp_path):
    code = "import jax\n\ndef body(x):\n    raise RuntimeError('in the body')\n\n"
    done, _ = audit(tmp_path, code + "jax.pmap(body)(jax.numpy.ones(2))\n")

    assert done.returncode == 1
    assert "in body" in done.stderr
    assert str(Path(pmapx.__file__).parent) not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Next: fix the program's error")


@pytest.mark.slow
def test_a_program_that_is_killed_before_a_call_is_reported_with_the_signal(tmp_path):
    done, _ = audit(tmp_path, "import jax, os\nos.kill(os.getpid(), 9)\n")

    assert "was ended by SIGKILL before it called a mapped function" in done.stderr


def test_a_program_without_anything_to_audit_exits_with_1(tmp_path):
    done, report = audit(tmp_path, "import jax\nprint(jax.device_count())\n")

    assert (done.returncode, done.stdout) == (1, "2\n")
    assert report.functions == ()
    assert "called no pmapped function" in done.stderr
    assert "nothing was audited" in done.stderr


def test_jitted_functions_of_one_device_are_audited_if_there_are_no_others(tmp_path):
    done, report = audit(tmp_path, "import jax\nprint(jax.jit(lambda x: x + 1)(1))\n")

    assert (done.returncode, done.stdout) == (0, "2\n")
    assert [each.kind for each in report.functions] == ["jit"]


def test_a_jit_of_sharded_arrays_is_audited_without_a_shard_map(tmp_path):
    code = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
sharded = NamedSharding(Mesh(np.array(jax.devices()), "i"), P("i"))
total = jax.jit(lambda x: x.sum(0), in_shardings=sharded)
total(np.ones((4, 4)))
"""
    _, report = audit(tmp_path, code)

    (found,) = report.functions
    assert (found.kind, found.device_count) == ("jit", 2)
    assert [each.kind for each in found.exchanges] == ["all-reduce"]


def test_a_function_pmapped_again_in_each_iteration_is_reported(tmp_path):
    code = """
import functools, jax, numpy as np
def times(k, x):
    return k * x
for _ in range(3):
    jax.pmap(functools.partial(times, 2))(np.ones((2, 3)))
"""
    _, report = audit(tmp_path, code)

    (function,) = report.functions
    assert (function.history.calls, function.history.compiles) == (3, 3)
    assert "PMX605" in codes(report)


def test_an_error_of_the_program_is_its_own(tmp_path):
    code = "import jax, numpy as np\njax.pmap(lambda x: x)(np.ones((5, 1)))\n"

    done, report = audit(tmp_path, code)

    assert done.returncode == 1
    assert "PMX201" in done.stderr
    assert report.functions == ()


def test_a_missing_command_is_an_error_in_one_line(tmp_path):
    done, report = audit(tmp_path, "", command=["no-such-program"])

    assert (done.returncode, report) == (2, None)
    assert done.stderr == "pmapx: no such command: no-such-program\n"


def test_a_missing_output_folder_is_an_error_before_the_program_runs(tmp_path):
    done, _ = audit(tmp_path, "print('ran')", "--html", str(tmp_path / "missing" / "x.html"))

    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_ends_the_program_and_the_report_comes(tmp_path):
    program, report = tmp_path / "train.py", tmp_path / "audit.json"
    program.write_text(TRAIN + "\nprint('waiting', flush=True)\nimport time\ntime.sleep(120)\n")
    audited = subprocess.Popen(
        [sys.executable, "-m", "pmapx", "audit", "--devices", "2", "--json", str(report), "--"]
        + [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": str(Path(pmapx.__file__).parents[1]),
             "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # A shell's background jobs, of which a test run may be one, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while "waiting" not in (line := audited.stdout.readline()):
        assert line, audited.stderr.read()
    os.killpg(audited.pid, signal.SIGINT)  # As a terminal does: to the program too.
    _, said = audited.communicate(timeout=60)

    assert audited.returncode == 130
    assert "KeyboardInterrupt" in said
    assert "5 calls" in said
    assert said.splitlines()[-1].startswith("Next: the report covers the run up to Ctrl-C")
    assert json.loads(report.read_text())["functions"][0]["name"] == "step"


def test_a_pod_without_its_compiler_is_refused_before_the_program_runs(tmp_path):
    if importlib.util.find_spec("libtpu") is not None:
        pytest.skip("the compiler is here")
    done, report = audit(tmp_path, TRAIN, "--topology", "v5e:4x4")

    assert (done.returncode, done.stdout, report) == (2, "", None)
    assert "pip install 'pmapx[tpu]'" in done.stderr


@pytest.mark.slow
@makes_devices
def test_input_placement_here_is_not_a_finding_on_a_topology(tmp_path):
    done, report = audit(tmp_path, TRAIN, "--topology", "cpu:4")

    assert done.returncode == 0
    assert "PMX604" not in codes(report)
    assert report.functions[0].history.moved == ()
    assert "pmapx audit: compiling step for cpu:4" in done.stderr


FSDP = """
import jax, numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P
def step(params, x):
    whole = lax.all_gather(params, "i", tiled=True)
    return params - lax.psum_scatter(x.T @ (x @ whole), "i", tiled=True)
def build(devices):
    mesh = Mesh(np.array(devices), "i")
    mapped = jax.shard_map(step, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    shapes = [(32, 4), (8 * len(devices), 32)]
    return jax.jit(mapped), [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
if __name__ == "__main__":
    f, shapes = build(jax.devices())
    f(*(np.ones(each.shape, each.dtype) for each in shapes))
"""


@pytest.mark.slow
@makes_devices
def test_parameters_of_fsdp_are_not_scaled(tmp_path):
    _, report = audit(tmp_path, FSDP, "--topology", "cpu:8", "--scaling", "cpu:2,8")

    (found,) = report.functions
    assert [leaf.shape for leaf in found.arguments] == [(32, 4), (64, 32)]
    assert found.grown == ("x: (16, 32) -> (64, 32)",)
    assert found.scaling.growing == ()


@makes_devices
def test_a_shape_that_does_not_fit_is_explained_and_nothing_audited(tmp_path):
    done, report = audit(tmp_path, FSDP, "--topology", "cpu:8", "--scale", "params=0")

    assert done.returncode == 1
    assert report.functions == ()
    assert "params: (32, 4) -> (128, 4)" in report.skipped[0]
    assert "--fixed" in done.stderr


@makes_devices
def test_a_function_is_built_for_the_topology_without_a_program(tmp_path):
    (tmp_path / "train.py").write_text(FSDP)
    done = run_audit(tmp_path, "--topology", "cpu:4", "--build", "train:build")

    assert done.returncode == 0, done.stderr
    assert "step (train.py:5): jit of shard_map on i=4 (cpu)" in done.stderr


@pytest.mark.slow
def test_a_missing_build_function_is_an_error_that_names_it(tmp_path):
    done = run_audit(tmp_path, "--build", "nowhere:build")

    assert done.returncode == 1
    assert "--build nowhere:build: No module named 'nowhere'" in done.stderr


@pytest.mark.slow
def test_a_file_or_module_is_run_by_its_name_alone(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)

    for command in (["train.py", "--steps"], ["-m", "train", "--steps"]):
        done = run_audit(tmp_path, "--devices", "2", *command)
        assert done.returncode == 0, done.stderr
        assert "step (train.py:5): pmapx.pmap on batch=2" in done.stderr


def test_without_a_number_there_are_8_virtual_devices(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    done = run_audit(tmp_path, "train.py")

    assert "pmapx.pmap on batch=8 (cpu)" in done.stderr


@pytest.mark.slow
@makes_devices
def test_the_scaling_table_is_made_in_the_program(tmp_path):
    done, report = audit(tmp_path, TRAIN, "--scaling", "cpu:2,4")

    [function] = report.functions[:1]
    assert [point.devices for point in function.scaling.points] == [2, 4]
    assert "pmapx audit: compiling for cpu:4: step" in done.stderr
    assert "on more devices, per device:" in done.stderr


def test_a_scaling_table_of_nothing_known_is_one_line(tmp_path):
    done, report = audit(tmp_path, TRAIN, "--scaling", "v9:8")

    assert (done.returncode, report) == (2, None)
    assert done.stderr.startswith("pmapx: topology 'v9:8': ")
    assert len(done.stderr.splitlines()) == 1


def test_each_static_value_is_a_signature_of_its_own():
    watched = AuditedCalls("step", None, "train.py:1", static_argnums=(1,))
    examined = []

    for is_training in (True, False, True, 1):
        watched.note_call((2.0, is_training), {}, lambda args, kwargs: examined.append(args[1]))

    assert list(map(repr, examined)) == ["True", "False", "1"]


@pytest.mark.slow
def test_the_steps_of_a_program_are_shown_with_their_state_sharded(tmp_path):
    program = TRAIN.replace("arange(8.0).reshape(4, 2)", "ones((4, 256))")
    done, report = audit(tmp_path, program, "--what-if", "fsdp")

    found = report.functions[0].what_if
    assert done.returncode == 0, done.stderr
    # w has 4 x 256 numbers, half of them on each of two devices; the counter stays.
    costs = found.before.arguments["state['w']"], found.after.arguments["state['w']"]
    assert costs == (4096, 2048)
    assert "FSDP over batch=2" in done.stderr


def test_another_what_if_is_a_mistake_of_usage(tmp_path):
    done = run_audit(tmp_path, "--what-if", "zero", "train.py")

    assert done.returncode == 2
    assert "'zero' is not 'fsdp'" in done.stderr


INNER = """
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), "i")
mapped = jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
total = jax.jit(mapped)

@jax.jit
def centred(x):
    return x - total(x) / jax.device_count()

centred(np.ones((jax.device_count(), 3)))
"""


@pytest.mark.slow
@makes_devices
def test_a_jit_inside_of_another_is_traced_again_for_a_topology(tmp_path):
    done, report = audit(tmp_path, INNER, "--topology", "cpu:4")

    assert done.returncode == 0, done.stderr
    assert [(each.name, each.device_count) for each in report.functions] == [("centred", 4)]
    assert report.skipped == ()


@pytest.mark.slow
@makes_devices
def test_a_name_that_no_function_has_is_a_mistake(tmp_path):
    done, _ = audit(tmp_path, TRAIN, "--topology", "cpu:4", "--fixed", "stat", "--fixed", "state")

    assert done.returncode == 1
    assert "pmapx: no function has an argument stat\n" in done.stderr


def test_a_program_that_fails_first_is_not_called_one_without_mapped_functions(tmp_path):
    done = run_audit(tmp_path, "-m", "no_such_module")

    assert done.returncode == 1
    assert "no_such_module failed with status 1 before it called a mapped function" in done.stderr


def test_files_that_are_not_there_are_named(tmp_path):
    assert run_audit(tmp_path, "nosuch.py").stderr == "pmapx: no such file: nosuch.py\n"
    (tmp_path / "train.py").write_text("")
    compared = run_audit(tmp_path, "--compare", "nosuch.json", "train.py")
    assert (compared.returncode, compared.stderr) == (
        2,
        "pmapx: cannot read nosuch.json: No such file or directory\n",
    )
