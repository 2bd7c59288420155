"""Whole programs through ``pmapx migrate --to jit``, before and after.

The first lines of a program in ``programs`` are what it must become: ``# jit: step`` for a jitted
function, ``# shard_map: step: words`` for one that keeps ``jax.shard_map``, with words of why.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from virtual_devices import xla_flags

pytest.importorskip("pmapx._src.codemod.migration", reason="needs pmapx[tools]")
pytest.importorskip("click.testing", reason="needs pmapx[tools]")

from click.testing import CliRunner

import pmapx
from pmapx._src.cli._group import group
from pmapx._src.codemod.to_jit import collective_edits

PROGRAMS = Path(__file__).parent / "programs"
QUICK = ["step_size_trap.py", pytest.param("dropout_by_axis_index.py", marks=pytest.mark.slow)]
EXPECTED = re.compile(r"# (jit|shard_map): ([^:\n]+)(?:: ([^\n]+))?\n")
COLLECTIVE = re.compile(r"lax\.(psum|pmean|pmax|pmin|all_gather|axis_size)\(")


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", xla_flags(8))


def copied(name, folder):
    source = PROGRAMS / name
    if source.is_dir():
        shutil.copytree(source, folder, dirs_exist_ok=True)
    else:
        shutil.copy(source, folder / "train.py")
    return folder / "train.py"


def expectations(program):
    found = EXPECTED.findall(program.read_text())
    assert found
    return found


def command_of(program):
    """Returns the words behind ``python`` that run a program."""
    found = re.search(r"^# command: (.*)$", program.read_text(), re.M)
    return found[1].split() if found else ["train.py"]


@pytest.fixture(autouse=True)
def one_step_at_a_time(monkeypatch, tmp_path_factory):
    # Of many steps in flight, XLA's CPU backend now and then finishes none.
    folder = tmp_path_factory.mktemp("site")
    setting = 'import jax\njax.config.update("jax_cpu_enable_async_dispatch", False)\n'
    (folder / "sitecustomize.py").write_text(setting)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def numbers(folder, *words):
    """Returns all numbers that a program prints."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert not done.returncode, done.stderr[-2000:]
    # Of several processes only floats: what Gloo prints of its ranks may be broken anywhere.
    integers = "" if "-n" in words else r"|-?\d+"
    found = re.findall(r"-?\d+\.\d+(?:e[-+]?\d+)?" + integers, done.stdout)
    return [float(each) for each in found]


def check_forms(forms, program):
    for kind, names, words in expectations(program):
        for name in names.split(", "):
            [form] = [each for each in forms if each.function.endswith(name)]
            assert (kind == "jit") == (not form.reason), form
            if kind == "shard_map":
                assert words in form.reason
                assert re.search(r"\.py:\d+", form.reason)


@pytest.mark.parametrize("name", QUICK)
def test_a_step_becomes_jit_if_it_is_one_of_the_global_batch(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = copied(name, tmp_path)
    before = program.read_bytes()
    done = pmapx.migrate(["."], to="jit", command=[sys.executable, "train.py"])
    check_forms(done.forms, program)
    assert program.read_bytes() == before


def test_a_step_that_does_not_hold_keeps_shard_map(tmp_path, monkeypatch):
    # What JAX's own example did when it left pmap: the psum of its gradients became nothing.
    monkeypatch.setattr(collective_edits, "_text", dropped)
    monkeypatch.chdir(tmp_path)
    program = copied("step_size_trap.py", tmp_path)
    done = pmapx.migrate(["."], to="jit", command=[sys.executable, "train.py"])
    [form] = done.forms
    assert re.search(r"does not agree: on .* inputs, output.* differs by", form.reason)
    [file] = done.files
    assert b"jax.lax.psum(grads" in file.after
    assert b"jax.shard_map(" in file.after
    assert program.read_bytes() == file.before


def dropped(module, node, each, editor):
    return collective_edits._operand(module, node, editor, is_bound=False)


@pytest.mark.slow
def test_a_decorator_has_the_name_by_which_the_file_imports_partial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copied("one_example_per_device.py", tmp_path)
    done = pmapx.migrate(["."], to="jit", command=[sys.executable, "train.py"])
    after = done.files[0].after.decode()
    assert after.count("@partial(") == 2
    assert "functools.partial" not in after


@pytest.mark.slow
def test_explicit_axes_are_refused_where_the_step_would_cost_more(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copied("step_size_trap.py", tmp_path)
    command = [sys.executable, "train.py"]
    done = pmapx.migrate(["."], to="jit", command=command, mesh="explicit")
    [form], [file] = done.forms, done.files
    assert not form.reason
    is_explicit = b"AxisType.Explicit" in file.after
    assert is_explicit != any("its mesh has Auto axes" in note for note in form.notes)
    sent = re.findall(r"(\d+) B sent", "\n".join(form.notes))
    assert len(sent) == 2
    assert sent[0] == sent[1]


def test_jit_needs_a_command(tmp_path):
    (tmp_path / "train.py").write_text("import jax\nstep = jax.pmap(abs)\n")
    result = CliRunner().invoke(group, ["migrate", str(tmp_path), "--to", "jit"])
    assert result.exit_code == 2
    assert "--to jit -- python train.py" in result.output
    with pytest.raises(ValueError, match="needs a command"):
        pmapx.migrate([str(tmp_path)], to="jit")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(os.listdir(PROGRAMS)))
def test_a_program_prints_the_same_numbers_after(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = copied(name, tmp_path)
    expected = expectations(program)
    words = command_of(program)
    before = numbers(tmp_path, *([] if "pmapx" in words else ["-m", "pmapx", "run"]), *words)
    options = ["--to", "jit", "--write", "--report", "report.html"]
    command = [*options, "--", sys.executable, *words]
    result = CliRunner().invoke(group, ["migrate", ".", *command])
    assert result.exit_code in (0, 1), result.output
    after = program.read_text()
    for kind, names, reason in expected:
        for function in names.split(", "):
            pattern = rf"^.*: (?:jit|keeps shard_map): (?:\w+\.)?{re.escape(function)}: .*$"
            [line] = re.findall(pattern, result.output, re.M)
            assert f": {kind}:" in line.replace("keeps shard_map", "shard_map")
            assert reason in line
            assert kind == "jit" or re.search(r"\.py:\d+", line.partition(": keeps shard_map: ")[2])
            assert f"{line.split(': ')[1]}: " in (tmp_path / "report.html").read_text()
    if all(kind == "jit" for kind, _, _ in expected):
        texts = [path.read_text() for path in tmp_path.rglob("*.py")]
        assert not any("shard_map(" in text or COLLECTIVE.search(text) for text in texts)
    assert "pmap(" not in after
    if "-n" in words:
        assert "jax.make_array_from_process_local_data(" in after
        assert "multihost_utils" not in after
    # bfloat16 has 8 bits.
    rtol = 5e-2 if "bfloat16" in after else 2e-3
    found = sorted(numbers(tmp_path, *words))
    np.testing.assert_allclose(found, sorted(before), rtol=rtol, atol=1e-5)
