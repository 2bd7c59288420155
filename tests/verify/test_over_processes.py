"""A program of several processes: each is compared with the same one of the other version."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from test_runs import function, ran

import pmapx
from pmapx._src.codemod.migration import migrate
from pmapx._src.verify.compare import match_processes as processes
from pmapx._src.verify.compare.compare_arrays import Tolerance
from pmapx._src.verify.compare.summary import sum_up
from pmapx._src.verify.record.reader import Run
from pmapx._src.verify.uses import Use
from pmapx._src.verify.verify import verify
from virtual_devices import xla_flags

SOURCES = str(Path(pmapx.__file__).parents[1])

BEFORE = """
import jax, jax.numpy as jnp, numpy as np
jax.distributed.initialize()
N, HERE = jax.local_device_count(), jax.process_index()
X = np.arange(N * 3, dtype=np.float32).reshape(N, 3) + 100 * HERE
W = np.ones((N, 3), np.float32)
def update(w, x):
    return w - 0.1 * jax.lax.pmean(x * w, "i")
def spread(x):
    return x * 2
def logged(x):
    return x + 1
def sampled(key):
    return jax.random.normal(key, (2,)) + jax.lax.axis_index("i")
step = jax.pmap(update, axis_name="i", donate_argnums=0)
w = jnp.asarray(W)
for _ in range(3):
    w = step(w, X)
jax.pmap(spread)(X)
if HERE == 0:
    jax.pmap(logged, devices=jax.local_devices())(X)
jax.pmap(sampled, axis_name="i")(jax.random.split(jax.random.PRNGKey(HERE), N))
"""


def write(root, **versions):
    for version, text in versions.items():
        (root / version).mkdir(parents=True)
        (root / version / "train.py").write_text(text)


def verified(root, **options):
    """Runs the program of both folders in 2 processes of 2 devices."""
    launched = [sys.executable, "-m", "pmapx", "run", "-n", "2", "--devices", "2", "train.py"]
    env = {**os.environ, "PYTHONPATH": SOURCES, "XLA_FLAGS": xla_flags()}
    return verify(launched, root / "before", root / "after", env=env, devices=2, **options)


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory):
    """The program as migrate rewrites it."""
    root = tmp_path_factory.mktemp("rewritten")
    write(root, before=BEFORE)
    (file,) = migrate([str(root / "before" / "train.py")]).files
    return file.after.decode()


@pytest.mark.slow
def test_equal_versions_are_verified_in_every_process(tmp_path, rewritten):
    write(tmp_path, before=BEFORE, after=rewritten)

    found = verified(tmp_path)

    assert (found.errors, found.differences, found.exit_code()) == ((), (), 0)
    sites = {site.function: site for site in found.sites}
    assert {name: site.calls for name, site in sites.items()} == {
        "update": 6, "spread": 2, "logged": 1, "sampled": 2,
    }  # fmt: skip
    assert {site.agreement for site in found.sites} == {"equal to the bit"}
    assert sites["logged"].notes == ("called in process 0 of 2 only",)


def test_a_difference_in_one_process_is_reported_with_its_index(tmp_path, rewritten):
    after = rewritten.replace("x * 2", "(x * 2 + float(jax.process_index() == 1))")
    after = after.replace("jax.random.PRNGKey(HERE)", "jax.random.PRNGKey(0)")
    write(tmp_path, before=BEFORE, after=after)

    found = verified(tmp_path)

    sites = {site.function: site for site in found.sites}
    assert {name: site.state for name, site in sites.items()} == {
        "update": "verified", "spread": "different", "logged": "verified", "sampled": "different",
    }  # fmt: skip
    assert sites["spread"].process == 1
    assert sites["spread"].detail.startswith("process 1: call 0: the output: by up to 1 ")
    assert sites["sampled"].detail.startswith("process 1: call 0: argument 0 'key' got different")
    assert (found.first.function, found.exit_code()) == ("spread", 1)


@pytest.mark.slow
def test_a_process_that_dies_is_named_and_nothing_is_compared(tmp_path, rewritten):
    planted = "    import os, signal\n    if HERE == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
    after = rewritten.replace("def spread(x):\n", f"def spread(x):\n{planted}")
    write(tmp_path, before=BEFORE, after=after)

    found = verified(tmp_path)

    (line,) = found.differences
    assert line.startswith(
        "process 1 of 2 failed first, with signal SIGKILL, on the migrated version"
    )
    assert line.endswith("; nothing was compared")
    assert {(site.state, site.detail) for site in found.sites} == {
        ("unverified", "nothing was compared")
    }
    assert found.exit_code() == 1


@pytest.mark.slow
def test_a_process_that_hangs_is_named_and_none_is_left(tmp_path, rewritten):
    planted = "    import time\n    if HERE == 1: time.sleep(1000)\n"
    after = rewritten.replace("def spread(x):\n", f"def spread(x):\n{planted}")
    write(tmp_path, before=BEFORE, after=after)

    found = verified(tmp_path, timeout=60)

    (line,) = found.differences
    assert line.startswith("process 1 of 2 did not end on the migrated version within 6")
    assert line.endswith("; nothing was compared")
    assert not any(site.calls for site in found.sites)
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(tmp_path) not in running.stdout


def of_processes(*records, status=0, failed_first=None):
    made = [
        types.SimpleNamespace(
            functions={0: function(0, calls=[0] * calls)},
            has_calls=calls > 0,
            process=number,
            processes=2,
            strangers=[],
            has_ended=has_ended,
        )
        for number, calls, has_ended in records
    ]
    return Run(status, 9.0, made, "", failed_first)


def told(before, after):
    found = sum_up(before, after, [Use("train.py", 3, 3, 3, "call", "f")], Tolerance())
    return [*found.errors, *found.differences], {site.detail for site in found.sites}


def test_a_process_without_a_record_is_an_error():
    whole = of_processes((0, 1, True), (1, 1, True))
    assert told(of_processes((0, 1, True)), whole) == (
        ["process 1 of 2 left no record on the original version"],
        {"nothing was compared"},
    )


def test_only_the_process_that_has_not_ended_is_named():
    whole = of_processes((0, 1, True), (1, 1, True))
    hung = of_processes((0, 1, True), (1, 1, False), status=None)
    assert told(whole, hung) == (
        [
            "process 1 of 2 did not end on the migrated version within 9 s; before, it took 9 s; "
            "nothing was compared"
        ],
        {"nothing was compared"},
    )
    ((line,), _) = told(hung, whole)
    assert line == (
        "process 1 of 2 did not end on the original version within 9 s; nothing was compared"
    )


def test_a_process_that_fails_before_the_migration_is_an_error():
    whole = of_processes((0, 1, True), (1, 1, True))
    dead = of_processes((0, 1, False), status=3, failed_first=(1, "exit status 3"))
    assert told(dead, whole)[0] == [
        "process 1 of 2 failed first, with exit status 3, on the original version; nothing was "
        "compared"
    ]


def test_two_programs_of_several_processes_are_not_mixed_up():
    twice = of_processes((0, 1, True), (1, 1, True), (0, 2, True), (1, 2, True))
    (line,) = processes.problems(twice, of_processes((0, 1, True), (1, 1, True)))
    assert line.startswith(
        "2 processes call mapped functions as process 0 of 2 on the original version"
    )


def test_a_number_of_processes_that_changed_is_an_error():
    (line,) = processes.problems(of_processes((0, 1, True), (1, 1, True)), ran())
    assert line == "the program has 2 processes before and 1 after"


def test_a_subprocess_is_not_taken_for_its_parent():
    run = of_processes((0, 1, True), (1, 0, True), (1, 1, True))
    assert list(processes.problems(run, run)) == []
    assert [pair.before.has_calls for pair in processes.pairs(run, run)] == [True, True]
