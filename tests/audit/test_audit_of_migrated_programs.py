"""What ``pmapx migrate`` writes is audited: on the devices here, and for a target topology."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pmapx
from pmapx._src import fastpath
from virtual_devices import xla_flags

pytest.importorskip("click", reason="needs pmapx[tools]")

sys.path.insert(0, str(Path(__file__).parents[1] / "codemod"))
sys.path.insert(0, str(Path(__file__).parents[1] / "codemod" / "idioms"))

import yardstick
from example_programs import HERE, SRC, Program
from migrated_programs import migrated, of_libraries

PROGRAMS = {
    **{program.name: program for program in of_libraries(False)},
    **{name: Program(name, before) for name, (before, _) in yardstick.PROGRAMS.items()},
}
RUN_ALL = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from program_runner import results_of
for path in sys.argv[1:]:
    results = results_of(path)
    assert not isinstance(results, str), results
"""
FAST = ("jit_around_pmap", "lambda_sandbox", "render_chunks")
TOGETHER = 10
NAMES = list(PROGRAMS)
CHUNKS = [NAMES[start : start + TOGETHER] for start in range(0, len(NAMES), TOGETHER)]
# All cases take half an hour on two cores: each program has one of them unless all are wanted.
WAYS = list(itertools.product(("global", "stacked"), (None, "cpu:16")))
CASES = [
    (chunk, *way)
    for chunk in range(len(CHUNKS))
    for position, way in enumerate(WAYS)
    if position == chunk % len(WAYS) or "PMAPX_TEST_ALL" in os.environ
]
# A function that splits an array of 8 into as many parts as there are devices has no program on 16.
ONLY_HERE = {"to_parts"}
# With a device axis, the columns of a square matrix whose rows are sharded do not grow with them.
FIXED_SIZE = {("sharded_matmul", "stacked")}


def audited(names, style, topology, folder):
    copies = {name: migrated(PROGRAMS[name], style, folder / name)[0] for name in names}
    report = folder / "audit.json"
    options = [] if topology is None else ["--topology", topology]
    done = subprocess.run(
        [sys.executable, "-m", "pmapx", "audit", "--quiet", "--devices", "8", *options]
        + ["--json", str(report), "--", sys.executable, "-c", RUN_ALL]
        + [str(copy.main) for copy in copies.values()],
        env={
            **os.environ,
            "PYTHONPATH": str(SRC),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": xla_flags(),
        },
        capture_output=True,
        text=True,
        timeout=1200,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return copies, pmapx.AuditReport.from_dict(json.loads(report.read_text()))


def check(names, style, topology, folder):
    if topology is not None and fastpath.more_cpu_devices(1) is None:
        pytest.skip("public JAX makes its CPU devices once")
    names = [name for name in names if topology is None or (name, style) not in FIXED_SIZE]
    copies, report = audited(names, style, topology, folder)

    left_out = [line for line in report.skipped if line.partition(":")[0] not in ONLY_HERE]
    assert left_out == []
    lines = [line for each in report.functions for line in (each.place, each.mapped_at) if line]
    for name, copy in copies.items():
        assert any(line.startswith(str(copy.path)) for line in lines), name
    if topology is not None:
        assert {each.device_count for each in report.functions} == {16}


@pytest.mark.parametrize(
    ("style", "topology"),
    [("global", "cpu:16"), pytest.param("stacked", None, marks=pytest.mark.slow)],
)
def test_what_migrate_writes_is_auditable(tmp_path, style, topology):
    check(FAST, style, topology, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("chunk", "style", "topology"), CASES)
def test_what_migrate_writes_is_always_auditable(tmp_path, chunk, style, topology):
    check(CHUNKS[chunk], style, topology, tmp_path)
