"""A report compared with an earlier one, and the gate that the command makes of it."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pmapx
from pmapx._src.audit.hlo.collectives import Collective
from pmapx._src.audit.report import baseline
from pmapx._src.audit.report.audit_report import (
    AuditedFunction,
    AuditReport,
    Exchange,
    History,
    Memory,
    MovedInput,
)
from pmapx._src.audit.report.scaling_table import Point, Scaling
from virtual_devices import xla_flags

GATHER = Exchange("all-gather", ("i",), 8, 800, 700, 1, "train.py:9", "all_gather", is_written=True)
REDUCE = Exchange("all-reduce", ("i",), 8, 400, 700, 1, "train.py:7", "psum", is_written=True)
STEP = AuditedFunction(
    "step", "pmapx.pmap", "train.py:5", {"i": 8}, "cpu", (), (), (REDUCE,),
    Memory(1000, 0, 0, 0), (), History(3, 1, 1, ("first call",)),
)  # fmt: skip


def report(**changes):
    return AuditReport((dataclasses.replace(STEP, **changes),))


def point(topology, sent, memory):
    return Point(topology, 256, 1, sent, {}, memory, 0, 0, 1.0)


def worse(after, before=None, **options):
    compared = after.compare(before or report(), **options)
    return {change.what: change for change in compared.worse}


def test_equal_figures_are_not_reported_as_a_change():
    compared = report().compare(report())

    assert compared.changes == ()
    assert str(compared) == "the same as the baseline"


def test_a_new_collective_is_named_with_its_line():
    found = worse(report(exchanges=(REDUCE, GATHER)))

    assert found.keys() == {"all-gathers", "sent"}
    assert (found["sent"].before, found["sent"].after) == (700, 1400)
    assert found["all-gathers"].place == "train.py:9"
    assert str(found["all-gathers"]) == "step: all-gathers 0 -> 1: all-gather for all_gather"


@pytest.mark.parametrize(
    ("changes", "what", "cause"),
    [
        (
            {"history": History(3, 2, 2, ("first call", "x was f32[8], is f32[4]"))},
            "compiles",
            "x was f32[8], is f32[4]",
        ),
        (
            {"history": History(3, 1, 1, ("first",), (MovedInput("x", "it is on cpu:0 only", 3),))},
            "transferred inputs",
            "x: it is on cpu:0 only",
        ),
        ({"memory": Memory(1000, 0, 500, 0)}, "memory", None),
    ],
)
def test_what_grows_is_worse(changes, what, cause):
    change = worse(report(**changes))[what]

    assert change.cause == cause


def test_growth_within_the_tolerance_is_accepted():
    after = report(memory=Memory(1010, 0, 0, 0))

    assert worse(after) == {}
    assert [change.what for change in after.compare(report()).changes] == ["memory"]
    assert worse(after, tolerance=0.001).keys() == {"memory"}


def test_a_pod_is_compared_too():
    before = report(scaling=Scaling("step", (point("v5e:16x16", 700, 1000),), ()))
    after = report(scaling=Scaling("step", (point("v5e:16x16", 9000, 1000),), ()))

    assert worse(after, before).keys() == {"sent on v5e:16x16"}
    assert worse(after, report()) == {}  # The baseline has no figures of it.


def test_a_function_that_is_gone_is_worse_and_a_new_one_is_not():
    assert worse(AuditReport(())).keys() == {"audited"}
    assert worse(report(), AuditReport(())) == {}


def test_a_file_that_is_not_a_baseline_is_an_error(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"functions": 1, "format": 1}')
    with pytest.raises(ValueError, match=r"other.json is not a report of pmapx audit"):
        baseline.read(path)


def test_the_page_shows_both_figures(tmp_path):
    after = report(exchanges=(REDUCE, GATHER))
    after.to_html(tmp_path / "audit.html", after.compare(report()))

    page = (tmp_path / "audit.html").read_text()
    assert '"compared"' in page
    assert "1.37 KiB" in page


def test_a_collective_is_one_of_the_program():
    assert isinstance(GATHER, Collective)


CODE = """
import jax, numpy as np

def step(w, x):
    grads = jax.lax.pmean((x * w), "i")
    EXTRA
    return w - grads

f = jax.pmap(step, "i")
n = jax.device_count()
f(np.ones((n, 256), np.float32), np.ones((n, 256), np.float32))
"""


@pytest.fixture
def run(tmp_path):
    def run(extra, *options):
        (tmp_path / "train.py").write_text(CODE.replace("EXTRA", extra))
        return subprocess.run(
            [sys.executable, "-m", "pmapx", "audit", "--devices", "2", "--quiet", *options,
             "train.py"],
            env={**os.environ, "PYTHONPATH": str(Path(pmapx.__file__).parents[1]),
                 "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()},
            capture_output=True, text=True, timeout=240, cwd=tmp_path,
        )  # fmt: skip

    return run


def test_the_command_ends_with_1_and_a_table_when_a_step_regresses(run, tmp_path):
    pytest.importorskip("click", reason="needs pmapx[tools]")
    saved = run("", "--save", "baseline.json")
    same = run("", "--compare", "baseline.json")
    regressed = run(
        'grads = grads + jax.lax.all_gather(x, "i").sum()',
        *("--compare", "baseline.json", "--format", "github", "--html", "audit.html"),
    )

    assert (saved.returncode, same.returncode) == (0, 0), saved.stderr + same.stderr
    assert "the same as the baseline" in same.stderr
    assert json.loads((tmp_path / "baseline.json").read_text())["format"] == 1
    assert regressed.returncode == 1, regressed.stderr
    assert "worse, train.py:6, all-gather for all_gather" in regressed.stderr
    assert "::error file=train.py,line=6,title=pmapx audit::step: all-gathers 0 -> 1" in (
        regressed.stdout
    )
    assert '"compared"' in (tmp_path / "audit.html").read_text()


def test_a_missing_baseline_is_an_error_before_the_program_runs(run):
    pytest.importorskip("click", reason="needs pmapx[tools]")
    done = run("print('ran')", "--compare", "nowhere.json")

    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere.json" in done.stderr
