"""Audits of many programs, compared with what was worked out by hand from their text."""

import functools
import json
import linecache
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from expectations import EXPECTED

import pmapx
from virtual_devices import xla_flags

pytest.importorskip("click", reason="needs pmapx[tools]")

ROOT = Path(__file__).parents[1] / "codemod" / "programs"
RUN_ALL = """
import importlib.util, sys
import jax, jax.numpy as jnp, numpy as np

def varied(make):
    # Constants prove nothing: what a program initializes so gets other values.
    def made(*args, **kwargs):
        filled = make(*args, **kwargs)
        file = sys._getframe(1).f_code.co_filename
        # A mask of other values would count other examples.
        is_own = file in sys.argv and "masked" not in file
        if not is_own or isinstance(filled, jax.core.Tracer) or filled.dtype.kind != "f":
            return filled
        # What has leading device axes stays equal on all devices.
        axes = 1 if filled.shape[:1] == (8,) else 2 if filled.shape[:2] == (4, 2) else 0
        shape = filled.shape[axes:]
        added = 1e-3 * np.arange(np.prod(shape, dtype=int)).reshape(shape)
        return filled + added.astype(filled.dtype)
    return made

for module in (np, jnp):
    for name in ("zeros", "ones", "full", "zeros_like", "ones_like"):
        setattr(module, name, varied(getattr(module, name)))
broadcast_to = np.broadcast_to
np.broadcast_to = lambda *args, **kwargs: np.array(broadcast_to(*args, **kwargs))

for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
"""
QUICK = ("data_parallel_mlp", "cross_replica_batch_norm", "heat_halo_exchange", "kmeans")
TOGETHER = 12
"""Programs that one process runs."""
CASES = [
    pytest.param(program, name, marks=[] if program in QUICK else pytest.mark.slow,
                 id=f"{program}-{name}")
    for program, functions in EXPECTED.items()
    for name in functions
]  # fmt: skip


@functools.cache
def report_on(programs):
    """Programs, run one after the other in one process that is audited."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "audit.json"
        done = subprocess.run(
            [sys.executable, "-m", "pmapx", "audit", "--devices", "8", "--json", str(path), "--"]
            + [sys.executable, "-c", RUN_ALL, *(str(ROOT / f"{name}.py") for name in programs)],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(pmapx.__file__).parents[1]),
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": xla_flags(),
            },
            capture_output=True,
            text=True,
            timeout=560,
            cwd=folder,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return pmapx.AuditReport.from_dict(json.loads(path.read_text()))


def report_with(program):
    if program in QUICK:
        return report_on(QUICK)
    others = [name for name in EXPECTED if name not in QUICK]
    first = others.index(program) // TOGETHER * TOGETHER
    return report_on(tuple(others[first : first + TOGETHER]))


def found(program, name):
    """The first signature of a function, by its own name or that of what is assigned."""
    for function in report_with(program).functions:
        file, _, line = (function.mapped_at or "").rpartition(":")
        if Path(file).stem != program:
            continue
        text = linecache.getline(file, int(line))
        if function.name == name or re.match(rf"\s*(self\.)?{name} = ", text):
            return function
    raise AssertionError(f"{name} of {program} was not audited")


def below(paths, leaf):
    return _is_below(paths, leaf.path)


def _is_below(paths, path):
    return path is not None and any(path.removeprefix("out").startswith(part) for part in paths)


@pytest.mark.parametrize(("program", "name"), CASES)
def test_what_is_equal_on_all_devices(program, name):
    function, expected = found(program, name), EXPECTED[program][name]

    given = [leaf for leaf in function.arguments if below(expected.given, leaf)]
    # What is only read proves nothing, nor does state of one number that the call makes vary.
    unknown = {leaf.path for leaf in given if not leaf.is_equal}
    for leaf in given:
        drifts = math.prod(leaf.shard_shape) == 1 and _is_below(expected.varying, leaf.carried)
        assert leaf.is_equal or not leaf.carried or drifts, leaf
    for leaf in function.outputs:
        assert not (leaf.is_equal and below(expected.varying, leaf)), leaf
        assert below(expected.varying, leaf) != below(expected.replicated, leaf), leaf
        if below(expected.replicated, leaf):
            assert leaf.is_equal or leaf.since in unknown, leaf


@pytest.mark.parametrize(("program", "name"), CASES)
def test_what_is_sent(program, name):
    function, expected = found(program, name), EXPECTED[program][name]

    sent = Counter()
    for exchange in function.exchanges:
        sent[exchange.kind, exchange.times] += exchange.payload
    assert sent == Counter({(each.kind, each.times): each.bytes for each in expected.sent})


@pytest.mark.parametrize(("program", "name"), CASES)
def test_findings_follow_from_what_is_expected(program, name):
    function, expected = found(program, name), EXPECTED[program][name]
    stacked = [leaf for leaf in function.arguments if leaf.is_split]
    # Neither what the call makes vary nor what is only read is to be passed replicated.
    drifting = [leaf for leaf in stacked if _is_below(expected.varying, leaf.carried)]
    given = [leaf for leaf in stacked if below(expected.given, leaf) and leaf not in drifting]
    given = [leaf for leaf in given if leaf.carried]
    codes = {remark.code for remark in function.findings}

    assert ("PMX601" in codes) == (0 < len(given) < len(stacked))
    assert "PMX608" not in codes  # XLA adds no collective to a pmap.
    assert ("PMX609" in codes) == (name == "local_step")


def test_rows_taken_have_their_lines():
    reads = report_with(QUICK[0]).shard_reads

    lines = [linecache.getline(*split(read.place)) for read in reads]
    assert any("losses.append(loss[0].item())" in line for line in lines)
    assert all("[0]" in line for line in lines)


def split(place):
    file, _, line = place.rpartition(":")
    return file, int(line)


def test_no_function_was_left_out():
    assert report_with(QUICK[0]).skipped == ()
