"""Runs as a whole: commands that fail, hang or never come to JAX; functions that are matched."""

import os
import sys
import time
import types

import pytest

from pmapx._src.verify.compare.match_functions import match
from pmapx._src.verify.compare.summary import _errors
from pmapx._src.verify.record import recording
from pmapx._src.verify.record.reader import Function, Run
from pmapx._src.verify.verify import verify
from pmapx._src.watch.run_in_copy import default_devices
from pmapx._src.watch.tree_copies import CannotRunError


@pytest.fixture
def verified(tmp_path):
    """Verify two programs that never import JAX, which takes no time."""

    def verified(before, after, **options):
        for version, text in (("before", before), ("after", after)):
            (tmp_path / version).mkdir()
            (tmp_path / version / "run.py").write_text(text)
        folders = tmp_path / "before", tmp_path / "after"
        return verify([sys.executable, "run.py"], *folders, devices=8, **options)

    return verified


def test_a_command_without_jax_is_an_error(verified):
    found = verified("print()", "print()")
    assert found.errors == (
        "the command never imports JAX: pass the command that runs the program",
    )
    assert found.exit_code() == 2


def test_a_command_that_fails_after_the_change_is_a_difference(verified):
    found = verified("print()", "raise SystemExit('it broke')")
    assert found.differences == (
        "the command fails on the migrated version, exit status 1: it broke",
    )
    assert found.exit_code() == 1
    assert found.output == "it broke"


def test_a_command_that_fails_before_the_change_is_an_error(verified):
    found = verified("raise SystemExit(3)", "print()")
    assert found.errors == ("the command fails on the original version, exit status 3",)
    assert found.exit_code() == 2


def test_a_command_that_fails_on_both_is_an_error(verified):
    found = verified("raise ValueError('no data')", "raise ValueError('no data')")
    assert found.errors == (
        "the command fails on both versions, exit status 1: ValueError: no data",
    )


def test_a_signal_is_reported(verified):
    found = verified("print()", "import os; os.kill(os.getpid(), 9)")
    assert found.differences == ("the command fails on the migrated version, signal 9",)


def test_a_command_that_hangs_is_stopped_with_what_it_started(verified, tmp_path):
    hanging = (
        "import pathlib, subprocess, time\n"
        "sleeping = subprocess.Popen(['sleep', '300'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(sleeping.pid))\n"
        "time.sleep(300)\n"
    )
    found = verified("print()", hanging, timeout=2)
    (difference,) = found.differences
    assert difference.startswith("the command did not end on the migrated version within 2 s")
    assert found.exit_code() == 1
    with pytest.raises(ProcessLookupError):
        _wait_for_end(int((tmp_path / "pid").read_text()))


def _wait_for_end(pid):
    for _ in range(50):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] == "Z":
                raise ProcessLookupError
        time.sleep(0.1)


def test_a_missing_command_is_an_error_in_one_line(tmp_path):
    with pytest.raises(CannotRunError, match="cannot run no-such-thing: no such command"):
        verify(["no-such-thing"], tmp_path, tmp_path, devices=1)


def test_both_runs_have_the_same_hash_seed_and_devices(verified):
    flags = "[each for each in os.environ['XLA_FLAGS'].split() if 'device_count' in each][-1]"
    text = f"import os; raise SystemExit(os.environ['PYTHONHASHSEED'] + {flags})"
    found = verified(text, text)
    assert found.errors[0].partition(": ")[2].startswith("0")
    assert "--xla_force_host_platform_device_count=8" in found.errors[0]


def test_uses_that_were_not_reached_are_listed_even_if_nothing_ran(verified):
    found = verified("if 0:\n    import jax\n    jax.pmap(abs)\n", "")
    assert [(site.line, site.function, site.state) for site in found.sites] == [
        (3, "abs", "unverified")
    ]


@pytest.mark.parametrize(
    ("env", "devices"),
    [
        ({"JAX_PLATFORMS": "cpu"}, 8),
        ({"JAX_PLATFORMS": "cuda"}, None),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, None),
    ],
)
def test_devices_where_the_user_says_nothing(env, devices):
    assert default_devices(env) == devices


def ran(*, calls=(1,), strangers=(), status=0):
    """A run of one process for each number of calls."""
    recorded = [
        types.SimpleNamespace(
            functions={0: function(0, calls=[0] * count)},
            has_calls=count > 0,
            process=0,
            processes=1,
            strangers=list(strangers),
        )
        for count in calls
    ]
    return Run(status, 1.0, recorded, "")


def test_maps_in_processes_that_do_not_know_of_each_other_are_not_compared():
    (error,) = _errors(ran(calls=(1, 2)), ran())
    assert error == (
        "2 separate processes call mapped functions on the original version: start them with "
        "pmapx run -n"
    )


def test_processes_that_call_no_map_do_not_count():
    assert list(_errors(ran(calls=(0, 3)), ran())) == []


def test_a_run_that_imports_the_other_version_is_an_error():
    (error,) = _errors(ran(), ran(strangers=["/old/lab/model.py"]))
    assert error.startswith("the migrated version imported /old/lab/model.py")
    assert "PYTHONPATH=src" in error


def test_only_python_files_of_the_program_are_those_of_another_version():
    below = lambda file: recording._is_below(file, ["/old"])
    assert below("/old/lab/model.py")
    assert not below("/old/env/lib/python3.11/site-packages/numpy/core.py")
    assert not below("/old/lab/fast.so")
    assert not below("/older/lab/model.py")


def function(number, name="f", file="a.py", scope="<module>", calls=(), **more):
    return Function(number, "pmap", name, file, number, scope, (), calls=list(calls), **more)


def names(pairs):
    return sorted((b and b.number, a and a.number) for b, a in pairs)


def test_functions_of_one_name_are_matched_in_order():
    before, after = [function(0), function(1)], [function(5), function(9)]
    assert names(match(before, after)) == [(0, 5), (1, 9)]


def test_calls_are_matched_in_the_order_of_the_program():
    # The first was called last; after, each is made when it is first called, on one line.
    before = [
        function(0, calls=[10], orders=[2], count=1),
        function(1, calls=[11, 12], orders=[0, 1], count=2),
    ]
    after = [function(7, scope="main", calls=[20, 21, 22], orders=[0, 1, 2], count=3)]
    matched = {old.number: new.calls for old, new in match(before, after)}
    assert matched == {0: [22], 1: [20, 21]}


def test_a_function_that_was_renamed_is_matched_by_where_it_is():
    before = [function(0, "g"), function(1, "f")]
    after = [function(4, "f"), function(7, "step")]
    assert names(match(before, after)) == [(0, 7), (1, 4)]


def test_a_function_that_moved_to_another_file_is_matched_by_its_name():
    assert names(match([function(0)], [function(3, file="b.py")])) == [(0, 3)]


def test_a_function_of_one_version_only_has_no_pair():
    pairs = match([function(0)], [function(3, "g", "b.py", "main")])
    assert {(b and b.number, a and a.number) for b, a in pairs} == {(0, None), (None, 3)}
